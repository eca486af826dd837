"""Running one handler: validation, timeout, threads, context and outcome."""
