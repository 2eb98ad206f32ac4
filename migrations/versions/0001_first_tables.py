"""The first tables."""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

OLDEST_RUNTIME = "0.1.0"
KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

NOW_FUNCTION = """
CREATE FUNCTION lash_now() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
        + coalesce((SELECT micros FROM lash_clock_offsets WHERE name = current_setting('lash.clock', true)), 0)
$$
"""


def upgrade() -> None:
    create_tables()
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE lash_live_events SET UNLOGGED")
        op.execute(sa.text(NOW_FUNCTION.replace(":", "\\:")))
    meta = sa.table("lash_meta", sa.column("name", sa.Text), sa.column("value", sa.Text))
    rows = [{"name": "secret", "value": secrets.token_hex(32)}, {"name": "oldest_runtime", "value": OLDEST_RUNTIME}]
    op.bulk_insert(meta, rows)


def create_tables() -> None:
    op.create_table(
        "lash_blobs",
        sa.Column("id", KEY, sa.Identity(always=False), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("stored_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("lash_blobs_pk")),
        sa.UniqueConstraint("hash", name=op.f("lash_blobs_hash_uq")),
    )
    op.create_table(
        "lash_clock_offsets",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("micros", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("lash_clock_offsets_pk")),
    )
    op.create_table(
        "lash_meta",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("lash_meta_pk")),
    )
    op.create_table(
        "lash_sessions",
        sa.Column("id", KEY, sa.Identity(always=False), nullable=False),
        sa.Column("uid", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("deleted_at", sa.BigInteger(), nullable=True),
        sa.Column("forked_from", sa.Text(), nullable=True),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("leaf", sa.Text(), nullable=True),
        sa.Column("depth", sa.Integer(), nullable=False),
        sa.Column("frame", sa.Integer(), nullable=False),
        sa.Column("branch", sa.BigInteger(), nullable=False),
        sa.Column("state_set", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("lease_owner", sa.Text(), nullable=True),
        sa.Column("lease_generation", sa.BigInteger(), nullable=False),
        sa.Column("lease_expires_at", sa.BigInteger(), nullable=True),
        sa.Column("next_item_at", sa.BigInteger(), nullable=True),
        sa.Column("ready_at", sa.BigInteger(), nullable=True),
        sa.Column("config_revision", sa.Integer(), nullable=False),
        sa.Column("catalog_revision", sa.Integer(), nullable=False),
        sa.Column("metadata_revision", sa.Integer(), nullable=False),
        sa.CheckConstraint("(state = 'live') = (name IS NOT NULL)", name=op.f("lash_sessions_name_ck")),
        sa.CheckConstraint("state IN ('live', 'deleted', 'origin')", name=op.f("lash_sessions_state_ck")),
        sa.CheckConstraint(
            "revision >= 0 AND seq >= 0 AND lease_generation >= 0", name=op.f("lash_sessions_counters_ck")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("lash_sessions_pk")),
        sa.UniqueConstraint("uid", name=op.f("lash_sessions_uid_uq")),
    )
    op.create_index(
        "lash_sessions_name_ix",
        "lash_sessions",
        ["name"],
        unique=True,
        sqlite_where=sa.text("state = 'live'"),
        postgresql_where=sa.text("state = 'live'"),
    )
    op.create_index(
        "lash_sessions_ready_ix",
        "lash_sessions",
        ["ready_at"],
        unique=False,
        sqlite_where=sa.text("ready_at IS NOT NULL"),
        postgresql_where=sa.text("ready_at IS NOT NULL"),
    )
    op.create_table(
        "lash_blob_refs",
        sa.Column("session", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("major", sa.BigInteger(), nullable=False),
        sa.Column("minor", sa.BigInteger(), nullable=False),
        sa.Column("blob", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("holder IN ('node', 'item', 'debt')", name=op.f("lash_blob_refs_holder_ck")),
        sa.ForeignKeyConstraint(["blob"], ["lash_blobs.id"], name=op.f("lash_blob_refs_blob_fk")),
        sa.ForeignKeyConstraint(["session"], ["lash_sessions.id"], name=op.f("lash_blob_refs_session_fk")),
        sa.PrimaryKeyConstraint("session", "holder", "major", "minor", "blob", name=op.f("lash_blob_refs_pk")),
    )
    op.create_index("lash_blob_refs_blob_ix", "lash_blob_refs", ["blob"], unique=False)
    op.create_table(
        "lash_branches",
        sa.Column("session", sa.BigInteger(), nullable=False),
        sa.Column("branch", sa.BigInteger(), nullable=False),
        sa.Column("parent_session", sa.BigInteger(), nullable=True),
        sa.Column("parent_branch", sa.BigInteger(), nullable=True),
        sa.Column("parent_depth", sa.Integer(), nullable=True),
        sa.CheckConstraint(
            "(parent_session IS NULL) = (parent_branch IS NULL) AND (parent_session IS NULL) = (parent_depth IS NULL)",
            name=op.f("lash_branches_parent_ck"),
        ),
        sa.ForeignKeyConstraint(["parent_session"], ["lash_sessions.id"], name=op.f("lash_branches_parent_session_fk")),
        sa.ForeignKeyConstraint(["session"], ["lash_sessions.id"], name=op.f("lash_branches_session_fk")),
        sa.PrimaryKeyConstraint("session", "branch", name=op.f("lash_branches_pk")),
    )
    op.create_index("lash_branches_parent_ix", "lash_branches", ["parent_session"], unique=False)
    op.create_table(
        "lash_commits",
        sa.Column("session", sa.BigInteger(), nullable=False),
        sa.Column("operation", sa.LargeBinary(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("content_hash", sa.LargeBinary(), nullable=False),
        sa.Column("committed_at", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("branch", sa.BigInteger(), nullable=False),
        sa.Column("first_depth", sa.Integer(), nullable=False),
        sa.Column("nodes", sa.Integer(), nullable=False),
        sa.Column("leaf", sa.Text(), nullable=True),
        sa.Column("state_set", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["session"], ["lash_sessions.id"], name=op.f("lash_commits_session_fk")),
        sa.PrimaryKeyConstraint("session", "operation", name=op.f("lash_commits_pk")),
        sa.UniqueConstraint("session", "revision", name=op.f("lash_commits_session_revision_uq")),
    )
    op.create_table(
        "lash_documents",
        sa.Column("session", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("superseded_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["session"], ["lash_sessions.id"], name=op.f("lash_documents_session_fk")),
        sa.PrimaryKeyConstraint("session", "kind", "revision", name=op.f("lash_documents_pk")),
    )
    op.create_table(
        "lash_inbox",
        sa.Column("session", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.LargeBinary(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("content_hash", sa.LargeBinary(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("aim", sa.Text(), nullable=False),
        sa.Column("boundary", sa.Text(), nullable=False),
        sa.Column("merge_key", sa.Text(), nullable=True),
        sa.Column("options", sa.Text(), nullable=False),
        sa.Column("available_at", sa.BigInteger(), nullable=True),
        sa.Column("admitted_at", sa.BigInteger(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("target", sa.LargeBinary(), nullable=True),
        sa.Column("turn", sa.LargeBinary(), nullable=True),
        sa.Column("settled_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("state IN ('pending', 'taken', 'completed', 'cancelled')", name=op.f("lash_inbox_state_ck")),
        sa.ForeignKeyConstraint(["session"], ["lash_sessions.id"], name=op.f("lash_inbox_session_fk")),
        sa.PrimaryKeyConstraint("session", "seq", name=op.f("lash_inbox_pk")),
        sa.UniqueConstraint("session", "id", name=op.f("lash_inbox_session_id_uq")),
    )
    op.create_index(
        "lash_inbox_aimed_ix",
        "lash_inbox",
        ["session", "target", "seq"],
        unique=False,
        sqlite_where=sa.text("state = 'pending' AND target IS NOT NULL"),
        postgresql_where=sa.text("state = 'pending' AND target IS NOT NULL"),
    )
    op.create_index(
        "lash_inbox_due_ix",
        "lash_inbox",
        ["session", "due_at"],
        unique=False,
        sqlite_where=sa.text("state = 'pending'"),
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_index(
        "lash_inbox_key_ix",
        "lash_inbox",
        ["session", "key"],
        unique=True,
        sqlite_where=sa.text("key IS NOT NULL"),
        postgresql_where=sa.text("key IS NOT NULL"),
    )
    op.create_index(
        "lash_inbox_taken_ix",
        "lash_inbox",
        ["session", "turn", "seq"],
        unique=False,
        sqlite_where=sa.text("state = 'taken'"),
        postgresql_where=sa.text("state = 'taken'"),
    )
    op.create_index(
        "lash_inbox_waiting_ix",
        "lash_inbox",
        ["session", "seq"],
        unique=False,
        sqlite_where=sa.text("state IN ('pending', 'taken')"),
        postgresql_where=sa.text("state IN ('pending', 'taken')"),
    )
    op.create_table(
        "lash_journal",
        sa.Column("session", sa.BigInteger(), nullable=False),
        sa.Column("turn", sa.LargeBinary(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("identity", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("composition", sa.Text(), nullable=True),
        sa.Column("wait", sa.LargeBinary(), nullable=True),
        sa.CheckConstraint("state IN ('started', 'completed', 'failed')", name=op.f("lash_journal_state_ck")),
        sa.ForeignKeyConstraint(["session"], ["lash_sessions.id"], name=op.f("lash_journal_session_fk")),
        sa.PrimaryKeyConstraint("session", "turn", "key", name=op.f("lash_journal_pk")),
    )
    op.create_table(
        "lash_live_events",
        sa.Column("session", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["session"], ["lash_sessions.id"], name=op.f("lash_live_events_session_fk")),
        sa.PrimaryKeyConstraint("session", "seq", "ordinal", name=op.f("lash_live_events_pk")),
    )
    op.create_table(
        "lash_nodes",
        sa.Column("session", sa.BigInteger(), nullable=False),
        sa.Column("branch", sa.BigInteger(), nullable=False),
        sa.Column("depth", sa.Integer(), nullable=False),
        sa.Column("frame", sa.Integer(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["session"], ["lash_sessions.id"], name=op.f("lash_nodes_session_fk")),
        sa.PrimaryKeyConstraint("session", "branch", "depth", name=op.f("lash_nodes_pk")),
    )
    op.create_table(
        "lash_outbox",
        sa.Column("session", sa.BigInteger(), nullable=False),
        sa.Column("operation", sa.LargeBinary(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("owed_at", sa.BigInteger(), nullable=False),
        sa.Column("settled_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("state IN ('owed', 'delivered', 'dropped')", name=op.f("lash_outbox_state_ck")),
        sa.ForeignKeyConstraint(["session"], ["lash_sessions.id"], name=op.f("lash_outbox_session_fk")),
        sa.PrimaryKeyConstraint("session", "operation", "ordinal", name=op.f("lash_outbox_pk")),
    )
    op.create_index(
        "lash_outbox_owed_ix",
        "lash_outbox",
        ["owed_at"],
        unique=False,
        sqlite_where=sa.text("state = 'owed'"),
        postgresql_where=sa.text("state = 'owed'"),
    )
    op.create_table(
        "lash_state_parts",
        sa.Column("session", sa.BigInteger(), nullable=False),
        sa.Column("state_set", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("blob", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["blob"], ["lash_blobs.id"], name=op.f("lash_state_parts_blob_fk")),
        sa.ForeignKeyConstraint(["session"], ["lash_sessions.id"], name=op.f("lash_state_parts_session_fk")),
        sa.PrimaryKeyConstraint("session", "state_set", "name", name=op.f("lash_state_parts_pk")),
    )
    op.create_index("lash_state_parts_blob_ix", "lash_state_parts", ["blob"], unique=False)
    op.create_table(
        "lash_turns",
        sa.Column("session", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("base_revision", sa.BigInteger(), nullable=False),
        sa.Column("config_revision", sa.Integer(), nullable=False),
        sa.Column("catalog_revision", sa.Integer(), nullable=False),
        sa.Column("options", sa.Text(), nullable=False),
        sa.Column("items", sa.LargeBinary(), nullable=False),
        sa.Column("opened_at", sa.BigInteger(), nullable=False),
        sa.Column("parked_until", sa.BigInteger(), nullable=True),
        sa.Column("parked_on", sa.LargeBinary(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("summary", sa.Text(), nullable=True),
        sa.Column("settled_at", sa.BigInteger(), nullable=True),
        sa.Column("cancel_request", sa.LargeBinary(), nullable=True),
        sa.Column("cancel_reason", sa.Text(), nullable=True),
        sa.Column("cancel_requested_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("state IN ('open', 'parked', 'settled')", name=op.f("lash_turns_state_ck")),
        sa.ForeignKeyConstraint(["session"], ["lash_sessions.id"], name=op.f("lash_turns_session_fk")),
        sa.PrimaryKeyConstraint("session", "id", name=op.f("lash_turns_pk")),
    )
    op.create_index(
        "lash_turns_unsettled_ix",
        "lash_turns",
        ["session"],
        unique=True,
        sqlite_where=sa.text("state <> 'settled'"),
        postgresql_where=sa.text("state <> 'settled'"),
    )
    op.create_table(
        "lash_usage",
        sa.Column("session", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("input", sa.BigInteger(), nullable=False),
        sa.Column("cache_read", sa.BigInteger(), nullable=False),
        sa.Column("cache_write", sa.BigInteger(), nullable=False),
        sa.Column("output", sa.BigInteger(), nullable=False),
        sa.Column("reasoning", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["session"], ["lash_sessions.id"], name=op.f("lash_usage_session_fk")),
        sa.PrimaryKeyConstraint("session", "revision", "ordinal", name=op.f("lash_usage_pk")),
    )
    op.create_table(
        "lash_waits",
        sa.Column("id", sa.LargeBinary(), nullable=False),
        sa.Column("session", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("turn", sa.LargeBinary(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("settled_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "state IN ('pending', 'answered', 'timed_out', 'revoked')", name=op.f("lash_waits_state_ck")
        ),
        sa.ForeignKeyConstraint(["session"], ["lash_sessions.id"], name=op.f("lash_waits_session_fk")),
        sa.PrimaryKeyConstraint("id", name=op.f("lash_waits_pk")),
    )
    op.create_index("lash_waits_turn_ix", "lash_waits", ["session", "turn"], unique=False)
