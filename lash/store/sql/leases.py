"""Who may run a session, and which sessions need somebody."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from sqlalchemy import Connection, bindparam, select

from lash import lease as rules
from lash.ids import OwnerId, SessionName, SessionUid
from lash.lease import Acquired, ExecutionLease, LeaseRecord
from lash.limits import check_owner, check_ttl
from lash.store import schema
from lash.store.checks import check_agents, check_limit
from lash.store.contract import ReadySession
from lash.store.sql.inbox import unsettled_turn
from lash.store.sql.sessions import find_row, keep_session
from lash.store.sql.steps import Steps, Work, Write
from lash.store.sql.turns import update_turn
from lash.turn.record import hand_over

_READY = (
    select(schema.sessions.c.uid, schema.sessions.c.name, schema.sessions.c.agent, schema.sessions.c.ready_at)
    .where(
        schema.sessions.c.ready_at <= bindparam("now", type_=schema.Micros),
        schema.sessions.c.agent.in_(bindparam("agents", expanding=True)),
    )
    .order_by(schema.sessions.c.ready_at, schema.sessions.c.id)
    .limit(bindparam("limit"))
)


def acquire(uid: SessionUid, owner: OwnerId, ttl: timedelta) -> Write[Acquired]:
    check_owner(owner)
    check_ttl(ttl)

    def steps(work: Work) -> Steps[Acquired]:
        row = work.session(uid)
        died = work.holder_died(row.lease, owner)
        acquired = rules.acquire(row.lease, uid, owner, now=work.now, ttl=ttl, holder_died=died)
        turn = yield from unsettled_turn(row)
        keep_session(work, row, row.with_lease(rules.record_of(acquired.lease)), was=turn, turn=turn)
        return acquired

    return Write((uid,), steps, urgent=True, owner=owner)


def renew(lease: ExecutionLease, ttl: timedelta) -> Write[ExecutionLease]:
    check_ttl(ttl)

    def steps(work: Work) -> Steps[ExecutionLease]:
        row = work.session(lease.session)
        renewed = rules.renew(row.lease, lease, now=work.now, ttl=ttl)
        turn = yield from unsettled_turn(row)
        keep_session(work, row, row.with_lease(rules.record_of(renewed)), was=turn, turn=turn)
        return renewed

    return Write((lease.session,), steps, urgent=True)


def release(lease: ExecutionLease) -> Write[None]:
    def steps(work: Work) -> Steps[None]:
        row = work.session(lease.session)
        released = rules.release(row.lease, lease)
        if released == row.lease:
            return
        turn = after = yield from unsettled_turn(row)
        # Somebody who held the lease and never took the turn up has no attempt to take back.
        if turn is not None and turn.generation == lease.generation:
            after = hand_over(turn)
            update_turn(work, row, after)
        keep_session(work, row, row.with_lease(released), was=turn, turn=after)

    return Write((lease.session,), steps, urgent=True)


def read(connection: Connection, uid: SessionUid) -> LeaseRecord:
    return find_row(connection, uid).lease


def ready(connection: Connection, agents: Collection[str], limit: int, now: datetime) -> list[ReadySession]:
    check_limit(limit)
    check_agents(agents)
    found = connection.execute(_READY, {"now": now, "agents": sorted(agents), "limit": limit})
    return [ReadySession(SessionUid(row.uid), SessionName(row.name), row.agent, row.ready_at) for row in found]
