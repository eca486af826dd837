"""What happened, read-only: tasks, their events and queue figures."""
