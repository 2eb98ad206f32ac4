"""${message}"""

from __future__ import annotations

% if upgrades and upgrades != "pass":
import sqlalchemy as sa
from alembic import op

% endif
revision = "${up_revision}"
down_revision = "${down_revision}"


def upgrade() -> None:
    ${upgrades or "pass"}
