"""What a company owns is found by its company: no key of its tables leads to rows of several."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Table, UniqueConstraint

from taketurns.storage.models import Base

# A claim walks a queue from company to company, so these begin with what it walks.
WALKED_BY_CLAIMS = {"pending_tasks": ["queue"], "turns": ["queue", "place"]}
# Operators have keys too, and make changes; and a key is looked up before its company is known.
OF_OPERATORS_TOO = {"api_keys", "audit_entries"}
OF_NO_COMPANY = {"companies", "heartbeats", "looks", "rotations", "sessions", "task_types", "workers"}


def test_the_key_of_what_a_company_owns_begins_with_the_company() -> None:
    others_first = {table.name: before for table in owned() if (before := columns_before_the_company(table))}
    assert others_first == WALKED_BY_CLAIMS


def test_every_table_is_owned_by_companies_or_is_known_not_to_be() -> None:
    assert {table.name for table in Base.metadata.sorted_tables} - {table.name for table in owned()} == OF_NO_COMPANY


def test_only_what_operators_have_too_may_be_of_no_company() -> None:
    assert {table.name for table in owned() if table.columns["company_id"].nullable} == OF_OPERATORS_TOO


def test_what_is_unique_is_unique_within_a_company_but_for_the_names_of_companies() -> None:
    across_companies = {
        (table.name, *names)
        for table in Base.metadata.sorted_tables
        for names in unique_columns(table)
        if "company_id" not in names
    }
    assert across_companies == {("companies", "slug")}


def owned() -> list[Table]:
    return [table for table in Base.metadata.sorted_tables if "company_id" in table.columns]


def columns_before_the_company(table: Table) -> list[str]:
    names = [column.name for column in table.primary_key]
    return [] if table.name in OF_OPERATORS_TOO else names[: names.index("company_id")]


def unique_columns(table: Table) -> Iterator[list[str]]:
    """Those of each unique constraint and index beside the primary key."""
    for constraint in table.constraints:
        if isinstance(constraint, UniqueConstraint):
            yield [column.name for column in constraint.columns]
    for index in table.indexes:
        if index.unique:
            yield [column.name for column in index.columns]
