"""Small programs that tests run as processes of their own: ``python -m tests.store.programs NAME URL ARGUMENTS``.

Each says on a line of its own what the store has acknowledged, so that whoever reads along has a list that does not
come from the database.
"""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import timedelta

from lash.errors import SessionBusy
from lash.ids import OwnerId, ReplayKey, SessionUid, TurnId
from lash.store.contract import Store
from lash.store.opening import open_store
from lash.testing.builders import Driven, a_message, an_opening, commit_nodes, hears, must_acquire, plan_of, says
from lash.turn.journal import Finished, Identity


def tell(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


async def enqueue(store: Store, uid: str, who: str, count: str) -> None:
    """Send some messages at once, and tell which place in line each got."""

    async def send(number: int) -> None:
        item = await store.admit(SessionUid(uid), a_message(f"{who} {number}", key=f"{who}-{number}"))
        tell(text=f"{who} {number}", seq=item.seq)

    for start in range(0, int(count), 10):
        await asyncio.gather(*(send(number) for number in range(start, start + 10)))


async def answer(store: Store, key: str, value: str) -> None:
    answered = await store.answer(key, value)
    tell(accepted=answered.accepted, answer=answered.wait.answer)


async def start_a_turn(store: Store, uid: str, ttl: str) -> None:
    """Open a turn, journal an outcome, say so, and then never come back."""
    opened = await store.open_turn(an_opening(SessionUid(uid), "doomed", ttl=timedelta(seconds=float(ttl))))
    assert opened.turn is not None
    assert opened.acquired is not None
    effect = Finished(ReplayKey("model:1"), Identity("model", 1), {"text": "recorded before the crash"})
    await store.record(opened.acquired.lease, opened.turn.id, [effect])
    tell(turn=opened.turn.id, generation=opened.acquired.lease.generation)
    await asyncio.Event().wait()


async def commit_again(store: Store, uid: str, turn: str, base: str) -> None:
    """Commit what another process may be committing at this very moment: the same turn, with the same content."""
    lease = await must_acquire(store, SessionUid(uid), "both")
    found = await store.turn(SessionUid(uid), TurnId(turn))
    items = tuple([item for item in (await store.items(SessionUid(uid), terminal=True)).rows if item.id in found.items])
    driven = Driven(lease, found, items, None)  # type: ignore[arg-type]  # how it was opened does not matter here
    plan = await plan_of(store, driven, hears("hello"), says("hi"))
    tell(ready=True)
    sys.stdin.readline()
    receipt = await store.commit(plan)
    tell(revision=receipt.revision, leaf=receipt.leaf)


async def grow(store: Store, uid: str, who: str) -> None:
    """Commit one node after another until somebody ends the process; tell each once it is acknowledged."""
    lease = await must_acquire(store, SessionUid(uid), who)
    for number in range(100_000):
        await commit_nodes(store, lease, says(f"{who} {number}"))
        tell(text=f"{who} {number}")


async def keep(store: Store, uid: str, ttl: str, every: str) -> None:
    """Keep the lease of a session until it is gone, and tell why it is."""
    lasts, pause = timedelta(seconds=float(ttl)), timedelta(seconds=float(every))
    async with await store.lease_keeper(ttl=lasts, every=pause) as keeper:
        asked_at = keeper.time()
        lease = await must_acquire(store, SessionUid(uid), "kept", ttl=keeper.ttl)
        kept = keeper.keep(lease, asked_at=asked_at)
        tell(generation=lease.generation)
        gone = await kept.gone
        tell(gone=type(gone).__name__, found=getattr(gone, "found", None), sure=kept.sure)


async def want(store: Store, uid: str, owner: str) -> None:
    """Ask for the lease of a session until it is ours, and tell when it is."""
    tell(ready=True)
    while True:
        try:
            acquired = await store.acquire(SessionUid(uid), OwnerId(owner), ttl=timedelta(minutes=1))
        except SessionBusy:
            await asyncio.sleep(0.02)
        else:
            tell(generation=acquired.lease.generation)
            return


PROGRAMS = {program.__name__: program for program in (enqueue, answer, start_a_turn, commit_again, grow, keep, want)}


async def main(name: str, url: str, *arguments: str) -> None:
    async with await open_store(url) as store:
        await PROGRAMS[name](store, *arguments)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
