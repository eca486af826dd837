"""Fails when the models and functions of this checkout are not what its migrations build.

`alembic check` compares tables and indexes; functions are compared by their installed source, and what a database
holds beyond them (a trigger, a function without a file) is drift as well.
"""

from __future__ import annotations

import sys

import psycopg
from alembic.util.exc import CommandError
from sqlalchemy import create_engine

from taketurns.storage import drift, embedded, schema, walls
from taketurns.storage.database import conninfo


def main() -> int:
    with embedded.throwaway() as server:
        url = server.create_database("check_schema")
        schema.upgrade(url)
        complaints = []
        try:
            schema.check(url)
        except CommandError as error:
            complaints.append(str(error))
        engine = create_engine(url)
        with engine.begin() as connection:
            complaints += drift.functions(connection, schema="taketurns")
            complaints += drift.triggers(connection, schema="taketurns")
        engine.dispose()
        with psycopg.connect(conninfo(url)) as psycopg_connection:
            gaps = walls.gaps(psycopg_connection, schema="taketurns")
            complaints += [f"table {name} has rows of companies and no wall" for name in gaps]
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
