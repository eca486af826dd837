"""The durable broker: tasks wait in PostgreSQL, and one SQL file stands for each verb."""
