"""The first schema of a cell.

The tables of taketurns/storage/models.py and the functions beside each broker verb.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from taketurns.storage import schema

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

READABLE = "between '0001-01-02 00:00+00'::timestamptz and '9999-12-30 00:00+00'::timestamptz"

# What companies own is behind a wall; see decisions/0014-a-wall-around-each-company.md.
WALLS = """
do $$
declare
    owned record;
begin
    for owned in
        select c.oid::regclass as name, a.attname as owner
        from pg_class c join pg_attribute a on a.attrelid = c.oid
        where c.relnamespace = current_schema()::regnamespace and c.relkind = 'r' and not a.attisdropped
            and (a.attname = 'company_id' or (c.relname = 'companies' and a.attname = 'id'))
    loop
        execute format('alter table %s enable row level security', owned.name);
        execute format(
            'create policy company on %s using (%I = nullif(current_setting(%L, true), %L)::uuid)',
            owned.name, owned.owner, 'taketurns.company_id', '');
    end loop;
    alter table rotations enable row level security;
    create policy company on rotations using (exists (select from lines l where l.queue = rotations.queue));
end
$$
"""


def upgrade() -> None:
    op.create_table(
        "companies",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("slug", sa.String(length=64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("weight", sa.SmallInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column("paused", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("paused_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("max_in_flight", sa.Integer(), nullable=True),
        sa.Column("max_queued", sa.Integer(), nullable=True),
        sa.Column("rate_tasks", sa.Integer(), nullable=True),
        sa.Column("rate_seconds", sa.Integer(), nullable=True),
        sa.Column("rate_burst", sa.Integer(), nullable=True),
        sa.Column("request_rate_requests", sa.Integer(), nullable=True),
        sa.Column("request_rate_seconds", sa.Integer(), nullable=True),
        sa.Column("request_rate_burst", sa.Integer(), nullable=True),
        sa.Column("limits_set_by", sa.Text(), nullable=True),
        sa.Column("hourly_quota", sa.Integer(), nullable=True),
        sa.Column("daily_quota", sa.Integer(), nullable=True),
        sa.Column("monthly_quota", sa.Integer(), nullable=True),
        sa.Column("keep_completed_seconds", sa.Integer(), nullable=True),
        sa.Column("keep_failed_seconds", sa.Integer(), nullable=True),
        sa.Column("keep_cancelled_seconds", sa.Integer(), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.CheckConstraint("max_in_flight >= 1", name=op.f("companies_max_in_flight_check")),
        sa.CheckConstraint("least(hourly_quota, daily_quota, monthly_quota) >= 0", name=op.f("companies_quotas_check")),
        sa.CheckConstraint("weight between 1 and 100", name=op.f("companies_weight_check")),
        sa.CheckConstraint("max_queued >= 0", name=op.f("companies_max_queued_check")),
        sa.CheckConstraint(
            "num_nonnulls(rate_tasks, rate_seconds, rate_burst) in (0, 3)"
            " and least(rate_tasks, rate_burst) between 1 and 100000 and greatest(rate_tasks, rate_burst) <= 100000"
            " and rate_seconds between 1 and 86400",
            name=op.f("companies_rate_check"),
        ),
        sa.CheckConstraint(
            "num_nonnulls(request_rate_requests, request_rate_seconds, request_rate_burst) in (0, 3)"
            " and least(request_rate_requests, request_rate_burst) between 1 and 100000"
            " and greatest(request_rate_requests, request_rate_burst) <= 100000"
            " and request_rate_seconds between 1 and 86400",
            name=op.f("companies_request_rate_check"),
        ),
        sa.CheckConstraint(
            f"paused_until {READABLE} and (paused or paused_until is null)",
            name=op.f("companies_paused_until_check"),
        ),
        sa.CheckConstraint(
            "least(keep_completed_seconds, keep_failed_seconds, keep_cancelled_seconds) >= 60"
            " and greatest(keep_completed_seconds, keep_failed_seconds, keep_cancelled_seconds) <= 315360000",
            name=op.f("companies_retention_check"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("companies_pkey")),
        sa.UniqueConstraint("slug", name=op.f("companies_slug_key")),
    )
    op.create_index("companies_weight_idx", "companies", ["weight"], unique=False)
    op.create_index(
        "companies_paused_until_idx",
        "companies",
        ["paused_until"],
        unique=False,
        postgresql_where=sa.text("paused_until is not null"),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("company_id", sa.Uuid(), nullable=True),
        sa.Column("role", sa.Text(), nullable=True),
        sa.Column("scopes", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("environment", sa.Text(), nullable=False),
        sa.Column("last_four", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("replaces", sa.Uuid(), nullable=True),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("made_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(company_id is null) = (role is not null)", name=op.f("api_keys_is_of_a_company_or_has_a_role_check")
        ),
        sa.CheckConstraint("role in ('viewer', 'operator', 'admin')", name=op.f("api_keys_role_check")),
        sa.CheckConstraint(
            f"created_at {READABLE} and expires_at {READABLE}", name=op.f("api_keys_times_are_readable_check")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("api_keys_pkey")),
    )
    op.create_index("api_keys_company_id_id_idx", "api_keys", ["company_id", "id"], unique=False)
    op.create_table(
        "audit_entries",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.Column("company_id", sa.Uuid(), nullable=True),
        sa.Column("actor_kind", sa.Text(), nullable=False),
        sa.Column("actor_name", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Uuid(), nullable=True),
        sa.Column("issuer", sa.Text(), nullable=True),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("details", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("address", sa.Text(), nullable=True),
        sa.Column("request_id", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "actor_kind in ('company', 'operator', 'command')", name=op.f("audit_entries_actor_kind_check")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("audit_entries_pkey")),
    )
    op.create_index("audit_entries_company_id_id_idx", "audit_entries", ["company_id", "id"], unique=False)
    op.create_index("audit_entries_action_id_idx", "audit_entries", ["action", "id"], unique=False)
    op.create_table(
        "budgets",
        sa.Column("company_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column(
            "moments", postgresql.ARRAY(sa.DateTime(timezone=True)), server_default=sa.text("'{}'"), nullable=False
        ),
        sa.Column("counts", postgresql.ARRAY(sa.Integer()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("cool_until", sa.DateTime(timezone=True), server_default=sa.text("'-infinity'"), nullable=False),
        sa.Column("line_until", sa.DateTime(timezone=True), server_default=sa.text("'-infinity'"), nullable=False),
        sa.Column("idle_at", sa.DateTime(timezone=True), server_default=sa.text("'-infinity'"), nullable=False),
        sa.CheckConstraint(
            "cardinality(moments) = cardinality(counts)", name=op.f("budgets_moments_have_counts_check")
        ),
        sa.PrimaryKeyConstraint("company_id", "name", name=op.f("budgets_pkey")),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("company_id", sa.Uuid(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.LargeBinary(), nullable=False),
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("company_id", "key", name=op.f("idempotency_keys_pkey")),
    )
    op.create_index("idempotency_keys_expires_at_idx", "idempotency_keys", ["expires_at"], unique=False)
    op.create_table(
        "job_reservations",
        sa.Column("company_id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("reserved_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("confirmed", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.PrimaryKeyConstraint("company_id", "job_id", name=op.f("job_reservations_pkey")),
    )
    op.create_index("job_reservations_reserved_at_idx", "job_reservations", ["reserved_at"], unique=False)
    op.create_index(
        "job_reservations_unconfirmed_idx",
        "job_reservations",
        ["reserved_at"],
        unique=False,
        postgresql_where=sa.text("not confirmed"),
    )
    op.create_index(
        "job_reservations_company_id_reserved_at_idx", "job_reservations", ["company_id", "reserved_at"], unique=False
    )
    op.create_table(
        "pending_tasks",
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("company_id", sa.Uuid(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("run_after", sa.DateTime(timezone=True), nullable=False),
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("retry_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("rescue_count", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("event_number", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.CheckConstraint(f"run_after {READABLE}", name=op.f("pending_tasks_run_after_is_readable_check")),
        sa.PrimaryKeyConstraint(
            "queue", "company_id", "priority", "run_after", "task_id", name=op.f("pending_tasks_pkey")
        ),
    )
    op.create_index("pending_tasks_company_id_task_id_idx", "pending_tasks", ["company_id", "task_id"], unique=False)
    op.create_table(
        "processing_tasks",
        sa.Column("company_id", sa.Uuid(), nullable=False),
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("run_after", sa.DateTime(timezone=True), nullable=False),
        sa.Column("worker_id", sa.Uuid(), nullable=False),
        sa.Column("claim_token", sa.Uuid(), nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("retry_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("rescue_count", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("event_number", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.PrimaryKeyConstraint("company_id", "task_id", name=op.f("processing_tasks_pkey")),
    )
    op.create_index("processing_tasks_claimed_at_idx", "processing_tasks", ["claimed_at"], unique=False)
    op.create_table(
        "prunings",
        sa.Column("company_id", sa.Uuid(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("keep", sa.Interval(), nullable=False),
        sa.Column("place", sa.Uuid(), nullable=False),
        sa.Column("begins_again_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("company_id", "status", name=op.f("prunings_pkey")),
    )
    op.create_table(
        "operations",
        sa.Column("company_id", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("filter", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("statuses", postgresql.ARRAY(sa.Text()), nullable=True),
        sa.Column("run_after", sa.DateTime(timezone=True), nullable=True),
        sa.Column("rate", sa.Double(), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("fingerprint", sa.LargeBinary(), nullable=True),
        sa.Column("looked_to", sa.Uuid(), nullable=True),
        sa.Column("is_matched", sa.Boolean(), nullable=False),
        sa.Column("matched", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("done", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("skipped", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("next_step_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("aborted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("kind in ('cancel', 'retry', 'reschedule', 'delete')", name=op.f("operations_kind_check")),
        sa.CheckConstraint("rate > 0", name=op.f("operations_rate_check")),
        sa.PrimaryKeyConstraint("company_id", "id", name=op.f("operations_pkey")),
    )
    op.create_index(
        "operations_next_step_at_idx",
        "operations",
        ["next_step_at"],
        unique=False,
        postgresql_where=sa.text("finished_at is null"),
    )
    op.create_index(
        "operations_finished_at_idx",
        "operations",
        ["finished_at"],
        unique=False,
        postgresql_where=sa.text("finished_at is not null"),
    )
    op.create_index(
        "operations_company_id_idempotency_key_key",
        "operations",
        ["company_id", "idempotency_key"],
        unique=True,
        postgresql_where=sa.text("idempotency_key is not null"),
    )
    op.create_table(
        "deletions",
        sa.Column("company_id", sa.Uuid(), nullable=False),
        sa.Column(
            "deleted_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("company_id", name=op.f("deletions_pkey")),
    )
    op.create_table(
        "operation_tasks",
        sa.Column("company_id", sa.Uuid(), nullable=False),
        sa.Column("operation_id", sa.Uuid(), nullable=False),
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("company_id", "operation_id", "task_id", name=op.f("operation_tasks_pkey")),
    )
    op.create_table(
        "quota_changes",
        sa.Column("company_id", sa.Uuid(), nullable=False),
        sa.Column("hour_starts_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("id", sa.Uuid(), server_default=sa.text("gen_random_uuid()"), nullable=False),
        sa.Column("refunded", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("kept", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("company_id", "hour_starts_at", "id", name=op.f("quota_changes_pkey")),
    )
    op.create_table(
        "quota_usage",
        sa.Column("company_id", sa.Uuid(), nullable=False),
        sa.Column("period", sa.Text(), nullable=False),
        sa.Column("starts_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("reserved", sa.BigInteger(), nullable=False),
        sa.Column("refunded", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("kept", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.CheckConstraint("period in ('hour', 'day', 'month')", name=op.f("quota_usage_period_check")),
        sa.PrimaryKeyConstraint("company_id", "period", "starts_at", name=op.f("quota_usage_pkey")),
    )
    op.create_index("quota_usage_period_starts_at_idx", "quota_usage", ["period", "starts_at"], unique=False)
    op.create_table(
        "rollups",
        sa.Column("company_id", sa.Uuid(), nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("seconds", sa.SmallInteger(), nullable=False),
        sa.Column("starts_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("completed", sa.Integer(), nullable=False),
        sa.Column("retried", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("waits", postgresql.ARRAY(sa.Integer()), nullable=False),
        sa.CheckConstraint("lane in ('tasks', 'jobs')", name=op.f("rollups_lane_check")),
        sa.CheckConstraint("seconds in (10, 60, 3600)", name=op.f("rollups_seconds_check")),
        sa.PrimaryKeyConstraint("company_id", "lane", "seconds", "starts_at", name=op.f("rollups_pkey")),
    )
    op.create_index("rollups_seconds_starts_at_idx", "rollups", ["seconds", "starts_at"], unique=False)
    op.create_index(
        "rollups_most_idx",
        "rollups",
        ["seconds", "starts_at", sa.literal_column("(completed + retried + failed)")],
        unique=False,
        postgresql_where=sa.text("seconds > 10 and lane = 'tasks'"),
    )
    op.create_index(
        "rollups_failed_idx",
        "rollups",
        ["seconds", "starts_at"],
        unique=False,
        postgresql_where=sa.text("seconds > 10 and failed > 0 and lane = 'tasks'"),
    )
    op.create_table(
        "rotations",
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("place", sa.BigInteger(), nullable=False),
        sa.Column("lowest_turn", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("queue", "place", name=op.f("rotations_pkey")),
    )
    op.create_table(
        "looks",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("from_the_beginning_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("took", sa.Interval(), nullable=False),
        sa.Column("has_old_snapshot", sa.Boolean(), nullable=False),
        sa.Column("oldest_claim", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("looks_pkey")),
    )
    op.create_table(
        "lines",
        sa.Column("company_id", sa.Uuid(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("rests_place", sa.BigInteger(), nullable=True),
        sa.Column("rests_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("full_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("rests_below", sa.Integer(), nullable=True),
        sa.CheckConstraint(
            "num_nonnulls(rests_until, full_since) = num_nonnulls(rests_place)"
            " and num_nonnulls(rests_below) = num_nonnulls(full_since)",
            name=op.f("lines_rest_check"),
        ),
        sa.PrimaryKeyConstraint("company_id", "queue", name=op.f("lines_pkey")),
    )
    _create_limits()
    op.create_table(
        "schedules",
        sa.Column("company_id", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("payload", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("max_retries", sa.Integer(), nullable=False),
        sa.Column("timeout_seconds", sa.Double(), nullable=True),
        sa.Column("expression", sa.Text(), nullable=False),
        sa.Column("time_zone", sa.Text(), nullable=False),
        sa.Column("missed", sa.Text(), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("held", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("declaration", sa.Text(), nullable=True),
        sa.Column("next_tick_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_tick_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column(
            "updated_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.CheckConstraint("missed in ('skip', 'last', 'all')", name=op.f("schedules_missed_check")),
        sa.CheckConstraint(
            f"next_tick_at {READABLE} and last_tick_at {READABLE}", name=op.f("schedules_ticks_are_readable_check")
        ),
        sa.PrimaryKeyConstraint("company_id", "id", name=op.f("schedules_pkey")),
        sa.UniqueConstraint("company_id", "name", name=op.f("schedules_company_id_name_key")),
    )
    op.create_index(
        "schedules_next_tick_at_idx",
        "schedules",
        ["next_tick_at"],
        unique=False,
        postgresql_where=sa.text("not paused and not held"),
    )
    op.create_index("schedules_held_idx", "schedules", ["company_id"], unique=False, postgresql_where=sa.text("held"))
    op.create_table(
        "sessions",
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("key_id", sa.Uuid(), nullable=False),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("sessions_pkey")),
    )
    op.create_index("sessions_expires_at_idx", "sessions", ["expires_at"], unique=False)
    op.create_table(
        "scheduled_tasks",
        sa.Column("company_id", sa.Uuid(), nullable=False),
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("run_after", sa.DateTime(timezone=True), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("retry_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("rescue_count", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("event_number", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.CheckConstraint(f"run_after {READABLE}", name=op.f("scheduled_tasks_run_after_is_readable_check")),
        sa.PrimaryKeyConstraint("company_id", "task_id", name=op.f("scheduled_tasks_pkey")),
    )
    op.create_index("scheduled_tasks_run_after_idx", "scheduled_tasks", ["run_after"], unique=False)
    op.create_table(
        "task_events",
        sa.Column("company_id", sa.Uuid(), nullable=False),
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("run_after", sa.DateTime(timezone=True), nullable=True),
        sa.Column("worker_id", sa.Uuid(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("company_id", "task_id", "number", name=op.f("task_events_pkey")),
    )
    op.create_table(
        "task_tags",
        sa.Column("company_id", sa.Uuid(), nullable=False),
        sa.Column("tag", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.PrimaryKeyConstraint("company_id", "tag", "task_id", name=op.f("task_tags_pkey")),
    )
    op.create_table(
        "unique_keys",
        sa.Column("company_id", sa.Uuid(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("company_id", "key", name=op.f("unique_keys_pkey")),
    )
    op.create_table(
        "task_types",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("payload_schema", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("max_retries", sa.Integer(), nullable=False),
        sa.Column("timeout_seconds", sa.Double(), nullable=True),
        sa.Column("published_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("task_types_pkey")),
    )
    op.create_table(
        "tasks",
        sa.Column("company_id", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("run_after", sa.DateTime(timezone=True), nullable=False),
        sa.Column("max_retries", sa.Integer(), nullable=False),
        sa.Column("timeout_seconds", sa.Double(), nullable=True),
        sa.Column("payload", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=True),
        sa.Column("traceparent", sa.Text(), nullable=True),
        sa.Column("schedule_id", sa.Uuid(), nullable=True),
        sa.Column("tags", postgresql.ARRAY(sa.Text()), nullable=True),
        sa.Column("unique_key", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("stopped_as", sa.Text(), nullable=True),
        sa.Column("retry_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("event_number", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("worker_id", sa.Uuid(), nullable=True),
        sa.Column("result", postgresql.JSON(astext_type=sa.Text()), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("error_fingerprint", sa.Text(), nullable=True),
        sa.Column("reserved_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("stopped_as in ('failed', 'cancelled')", name=op.f("tasks_stopped_as_check")),
        sa.CheckConstraint(
            "stopped_as is null or finished_at is not null", name=op.f("tasks_stopped_is_finished_check")
        ),
        sa.CheckConstraint(
            f"run_after {READABLE} and created_at {READABLE}", name=op.f("tasks_times_are_readable_check")
        ),
        sa.PrimaryKeyConstraint("company_id", "id", name=op.f("tasks_pkey")),
    )
    op.create_index(
        "tasks_company_id_stopped_as_id_idx",
        "tasks",
        ["company_id", "stopped_as", "id"],
        unique=False,
        postgresql_where=sa.text("stopped_as is not null"),
    )
    op.create_index("tasks_type_company_id_id_idx", "tasks", ["type", "company_id", "id"], unique=False)
    op.create_index(
        "tasks_company_id_reserved_at_idx",
        "tasks",
        ["company_id", "reserved_at"],
        unique=False,
        postgresql_where=sa.text("reserved_at is not null"),
    )
    op.create_index(
        "tasks_failures_idx",
        "tasks",
        ["company_id", "type", "error_fingerprint", "id"],
        unique=False,
        postgresql_where=sa.text("stopped_as = 'failed'"),
    )
    op.create_table(
        "turns",
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("place", sa.BigInteger(), nullable=False),
        sa.Column("company_id", sa.Uuid(), nullable=False),
        sa.Column("floor_priority", sa.SmallInteger(), nullable=True),
        sa.Column("floor_run_after", sa.DateTime(timezone=True), nullable=True),
        sa.Column("floor_task_id", sa.Uuid(), nullable=True),
        sa.PrimaryKeyConstraint("queue", "place", "company_id", name=op.f("turns_pkey")),
    )
    op.create_table(
        "watches",
        sa.Column("company_id", sa.Uuid(), nullable=False),
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("company_id", "task_id", name=op.f("watches_pkey")),
        prefixes=["UNLOGGED"],
    )
    op.create_index("watches_until_idx", "watches", ["until"], unique=False)
    op.create_table(
        "heartbeats",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("comes_again", sa.Boolean(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("queues", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("types", sa.Integer(), nullable=False),
        sa.Column("concurrency", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("beat_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_claim_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("left_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("wanted", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("heartbeats_pkey")),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), server_default=sa.text("'worker'"), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("queues", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("types", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("concurrency", sa.Integer(), nullable=False),
        sa.Column("beat", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("beat_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_claim_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("wanted", sa.Text(), server_default=sa.text("'run'"), nullable=False),
        sa.Column("state", sa.Text(), server_default=sa.text("'running'"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("workers_pkey")),
    )
    # Rows pass through these tables all the time; see decisions/0004-table-settings.md.
    for table in (
        "scheduled_tasks",
        "pending_tasks",
        "processing_tasks",
        "lines",
        "turns",
        "rotations",
        "looks",
        "quota_changes",
    ):
        op.execute(
            f"alter table {table} set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,"
            " autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000,"
            " autovacuum_vacuum_cost_delay = 0)"
        )
    for table, fillfactor in (("quota_usage", 50), ("prunings", 50), ("workers", 10), ("heartbeats", 10)):
        op.execute(f"alter table {table} set (fillfactor = {fillfactor}, autovacuum_vacuum_threshold = 500)")
    op.execute(
        "alter table tasks set (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02,"
        " autovacuum_analyze_scale_factor = 0.02)"
    )
    op.execute(WALLS)
    schema.install_functions(op.get_bind())
    op.execute(
        "create trigger keep_audit before update or delete or truncate on audit_entries"
        " for each statement execute function keep_audit()"
    )


def _create_limits() -> None:
    op.create_index(
        "lines_rests_until_idx",
        "lines",
        ["rests_until"],
        unique=False,
        postgresql_where=sa.text("rests_until is not null"),
    )
    op.create_index(
        "lines_full_since_idx",
        "lines",
        ["full_since"],
        unique=False,
        postgresql_where=sa.text("full_since is not null"),
    )
    op.create_index(
        "lines_awake_idx", "lines", ["company_id"], unique=False, postgresql_where=sa.text("rests_place is null")
    )
    op.create_table(
        "buckets",
        sa.Column("company_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("owed", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("company_id", "number", name=op.f("buckets_pkey")),
    )
    op.create_table(
        "pauses",
        sa.Column("company_id", sa.Uuid(), nullable=False),
        sa.Column("queue", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("type", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("set_by", sa.Text(), nullable=True),
        sa.Column("set_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.CheckConstraint("queue <> '' or type <> ''", name=op.f("pauses_names_something_check")),
        sa.CheckConstraint(f"until {READABLE}", name=op.f("pauses_until_is_readable_check")),
        sa.PrimaryKeyConstraint("company_id", "queue", "type", name=op.f("pauses_pkey")),
    )
    op.create_index(
        "pauses_until_idx", "pauses", ["until"], unique=False, postgresql_where=sa.text("until is not null")
    )
    op.create_index("pauses_type_idx", "pauses", ["type"], unique=False, postgresql_where=sa.text("type <> ''"))


def downgrade() -> None:
    op.execute("drop trigger keep_audit on audit_entries")
    schema.drop_functions(op.get_bind())
    op.execute("drop policy company on rotations")
    op.drop_table("workers")
    op.drop_table("heartbeats")
    op.drop_table("watches")
    op.drop_table("unique_keys")
    op.drop_table("turns")
    op.drop_table("lines")
    op.drop_table("looks")
    op.drop_table("tasks")
    op.drop_table("task_types")
    op.drop_table("task_tags")
    op.drop_table("task_events")
    op.drop_table("sessions")
    op.drop_table("schedules")
    op.drop_table("scheduled_tasks")
    op.drop_table("rotations")
    op.drop_table("rollups")
    op.drop_table("quota_usage")
    op.drop_table("quota_changes")
    op.drop_table("operation_tasks")
    op.drop_table("deletions")
    op.drop_table("operations")
    op.drop_table("processing_tasks")
    op.drop_table("prunings")
    op.drop_table("pending_tasks")
    op.drop_table("pauses")
    op.drop_table("job_reservations")
    op.drop_table("idempotency_keys")
    op.drop_table("budgets")
    op.drop_table("buckets")
    op.drop_table("audit_entries")
    op.drop_table("api_keys")
    op.drop_table("companies")
