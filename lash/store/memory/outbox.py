"""What commits owe other sessions."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from itertools import islice

from lash.commit.outbox import Debt
from lash.errors import OutboxNotFound
from lash.inbox.items import InboxItem
from lash.store.checks import check_limit
from lash.store.memory.inbox import Admitting


class MemoryOutbox(Admitting):
    async def debts(self, *, limit: int = 100) -> list[Debt]:
        check_limit(limit)
        open_debts = (row.debt for row in self.data.outbox.values() if row.settled_at is None)
        return deepcopy(list(islice(open_debts, limit)))

    async def deliver(self, debt: Debt) -> InboxItem | None:
        place, now = (debt.session, debt.operation, debt.ordinal), self.now()
        row = self.data.outbox.get(place)
        if row is None:
            raise OutboxNotFound(*place)
        receiver = self.data.sessions.get(row.debt.owed.to)
        if row.settled_at is not None:
            return None if receiver is None else deepcopy(receiver.items.get(row.debt.item().id))
        item = None
        if receiver is not None:
            with self.changing(row.debt.owed.to, now) as rows:
                item = deepcopy(self.admit_into(rows, deepcopy(row.debt.item()), now))
        self.data.outbox[place] = replace(row, settled_at=now)
        return item
