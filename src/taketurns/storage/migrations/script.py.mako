"""${message}

Runs while the release before it serves: expand first, backfill in batches, contract in a later release. Locks are
waited for at most as long as env.py says; a migration that gives up can be run again.
"""

from __future__ import annotations

from alembic import op
import sqlalchemy as sa
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    ${downgrades if downgrades else "pass"}
