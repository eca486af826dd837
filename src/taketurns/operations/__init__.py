"""One change of many tasks: taken in, looked at, aborted, and carried on in steps."""
