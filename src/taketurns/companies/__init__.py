"""Who may submit tasks, and how many: companies and their limits."""
