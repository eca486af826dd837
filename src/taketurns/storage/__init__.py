"""PostgreSQL itself: tables, migrations, connections and the embedded server."""
