"""Background tasks for software that serves many companies: no company can starve another."""
