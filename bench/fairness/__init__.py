"""`make bench-fairness`: whether companies take turns, measured and drawn."""
