"""The process that takes turns: loop, lease, upkeep and shutdown."""
