"""What companies want done again and again: their schedules, and the tasks that these make."""
