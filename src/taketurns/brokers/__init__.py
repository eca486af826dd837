"""Where tasks wait: every broker keeps the contract written in the engine."""
