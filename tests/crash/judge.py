"""What must hold after a crash: the list of what was acknowledged, compared with the rows as they are.

It shares no code with the store and reads plain rows. Everything that it finds wrong is a sentence.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tests.crash.calls import Call, Ledger
from tests.crash.databases import Row, Tables


def verdict(tables: Tables, ledger: Ledger) -> list[str]:
    """What is wrong, at whatever moment the tables were read; nobody may be writing meanwhile."""
    return list(Judge(tables, ledger).problems())


def last_verdict(tables: Tables, ledger: Ledger) -> list[str]:
    """What is wrong when everything was brought to its end."""
    judge = Judge(tables, ledger)
    return [*judge.problems(), *judge.unfinished()]


@dataclass
class Judge:
    tables: Tables
    ledger: Ledger
    uids: dict[int, str] = field(init=False)

    def __post_init__(self) -> None:
        self.uids = {row["id"]: row["uid"] for row in self.tables["sessions"]}

    def problems(self) -> Iterator[str]:
        yield from self._sessions()
        yield from self._documents_and_blobs()
        yield from self._items()
        yield from self._turns()
        yield from self._journal()
        yield from self._commits()
        yield from self._debts()
        yield from self._waits()
        yield from self._fence()
        yield from self._repetitions()

    # -- finding rows --------------------------------------------------------------------------------------------------

    def _by(self, table: str, *columns: str) -> dict[tuple[Any, ...], Row]:
        """The rows of a table by the uid of their session and some columns."""
        return {(self.uids[row["session"]], *(row[column] for column in columns)): row for row in self.tables[table]}

    @cached_property
    def sessions(self) -> dict[str, Row]:
        return {row["uid"]: row for row in self.tables["sessions"]}

    @cached_property
    def items(self) -> dict[tuple[Any, ...], Row]:
        return self._by("inbox", "id")

    @cached_property
    def turns(self) -> dict[tuple[Any, ...], Row]:
        return self._by("turns", "id")

    @cached_property
    def commits(self) -> dict[tuple[Any, ...], Row]:
        return self._by("commits", "operation")

    @cached_property
    def nodes(self) -> dict[tuple[str, int], list[Row]]:
        """The nodes that each revision of a session wrote, in order."""
        found: dict[tuple[str, int], list[Row]] = defaultdict(list)
        for row in sorted(self.tables["nodes"], key=lambda row: row["depth"]):
            found[self.uids[row["session"]], row["revision"]].append(row)
        return found

    @cached_property
    def blobs(self) -> dict[str, Row]:
        return {row["hash"]: row for row in self.tables["blobs"]}

    @cached_property
    def output(self) -> Counter[tuple[int, int]]:
        """The tokens that each revision counts."""
        found: Counter[tuple[int, int]] = Counter()
        for row in self.tables["usage"]:
            found[row["session"], row["revision"]] += row["output"]
        return found

    @cached_property
    def parts(self) -> dict[tuple[int, int], dict[str, str]]:
        """The state parts that each revision brought."""
        hashes = {row["id"]: row["hash"] for row in self.tables["blobs"]}
        found: dict[tuple[int, int], dict[str, str]] = defaultdict(dict)
        for row in self.tables["state_parts"]:
            found[row["session"], row["state_set"]][row["name"]] = hashes[row["blob"]]
        return found

    @cached_property
    def owed(self) -> Counter[tuple[int, int]]:
        """How many debts each revision made."""
        return Counter((row["session"], row["revision"]) for row in self.tables["outbox"])

    @cached_property
    def metadata(self) -> set[tuple[int, str]]:
        rows = (row for row in self.tables["documents"] if row["kind"] == "metadata")
        return {(row["session"], json.dumps(_value(row["body"]))) for row in rows}

    @cached_property
    def heard(self) -> dict[tuple[str, str], list[str]]:
        """The texts of the nodes that came from an item."""
        found: dict[tuple[str, str], list[str]] = defaultdict(list)
        for (uid, _), nodes in self.nodes.items():
            for node in nodes:
                body = json.loads(node["body"])
                if body.get("item") is not None:
                    found[uid, body["item"]].append(body["parts"][0]["text"])
        return found

    @cached_property
    def doomed(self) -> set[str]:
        """Sessions that somebody tried to delete: what was in them may be gone."""
        return {call.session for call in self.ledger.possible("delete")}

    @cached_property
    def swept(self) -> bool:
        """Whether somebody tried to vacuum: what has ended may be gone."""
        return any(True for _ in self.ledger.possible("vacuum"))

    @cached_property
    def cancelled(self) -> set[tuple[str, str]]:
        """Items that somebody tried to cancel."""
        return {(call.session, call.given["id"]) for call in self.ledger.possible("cancel")}

    def _may_be_swept(self, item: tuple[str, str]) -> bool:
        """A vacuum takes items that have ended: there is a node that came from it, or somebody cancelled it."""
        return self.swept and (item in self.heard or item in self.cancelled)

    def _living(self, calls: Iterable[Call]) -> Iterator[Call]:
        return (call for call in calls if call.session not in self.doomed)

    # -- sessions, documents, blobs ------------------------------------------------------------------------------------

    def _sessions(self) -> Iterator[str]:
        for call in self.ledger.acknowledged("open", "fork"):
            uid = call.answer["session"] if call.op == "open" else call.session
            row = self.sessions.get(uid)
            if row is None:
                yield f"session {uid} was acknowledged and is not there"
            elif uid not in self.doomed and (row["state"], row["name"]) != ("live", call.given["name"]):
                yield f"session {uid} is {row['state']} as {row['name']!r}, not living as {call.given['name']!r}"
            elif call.op == "fork" and row["forked_from"] != call.given["at"]:
                yield f"session {uid} was forked at {call.given['at']}, and says {row['forked_from']}"
        for call in self.ledger.acknowledged("delete"):
            if self.sessions[call.session]["state"] != "deleted":
                yield f"session {call.session} was deleted and is {self.sessions[call.session]['state']}"
        asked_for = {call.session for call in self.ledger.possible("open", "fork")}
        for uid, row in self.sessions.items():
            if row["state"] == "live" and uid not in asked_for:
                yield f"session {uid} is there and nobody asked for it"

    def _documents_and_blobs(self) -> Iterator[str]:
        documents = self._by("documents", "kind", "revision")
        for call in self._living(self.ledger.acknowledged("put_document")):
            row = documents.get((call.session, "metadata", call.answer))
            if row is None:
                if not self.swept or self.sessions[call.session]["metadata_revision"] == call.answer:
                    yield f"the metadata of revision {call.answer} of {call.session} is not there"
            elif _value(row["body"]) != {"by": call.given["word"]}:
                yield f"the metadata of revision {call.answer} of {call.session} is {row['body']}"
        for call in self.ledger.acknowledged("put_blob"):
            if call.given["blob"] not in self.blobs and not self.swept:
                yield f"blob {call.given['blob']} was acknowledged and is not there"
        for name, row in self.blobs.items():
            if hashlib.sha256(bytes.fromhex(row["body"])).hexdigest() != name:
                yield f"blob {name} has other bytes"

    # -- the inbox -----------------------------------------------------------------------------------------------------

    def _admissions(self) -> Iterator[tuple[Call, dict[str, Any], dict[str, Any] | None]]:
        """Each item that was asked for, and what was answered, if anything was."""
        for call in self.ledger.possible("admit"):
            yield call, call.given, call.answer if call.acknowledged else None
        for call in self.ledger.possible("open_turn"):
            if call.given["admits"] is not None:
                yield call, call.given["admits"], call.answer["admitted"] if call.acknowledged else None

    def _items(self) -> Iterator[str]:
        asked_for = set()
        for call, given, answer in self._admissions():
            asked_for.add((call.session, given["id"]))
            if answer is None or call.session in self.doomed:
                continue
            place = (call.session, answer["id"])
            row, heard = self.items.get(place), self.heard.get(place, [])
            if row is not None:
                text = _text_of(row)
                if (text, row["seq"], row["key"]) != (given["text"], answer["seq"], given["key"]):
                    yield f"item {place} is {text!r} at {row['seq']}, and {given} was acknowledged at {answer['seq']}"
            elif not self._may_be_swept(place):
                yield f"item {place} was acknowledged and is not there"
            if heard and heard != [given["text"]]:
                yield f"item {place} said {given['text']!r} and was heard as {heard}"
        for (uid, item), texts in self.heard.items():
            if len(texts) > 1:
                yield f"item {item} of {uid} was heard {len(texts)} times"
        for (uid, item), row in self.items.items():
            if (uid, item) not in asked_for and not (row["key"] or "").startswith("outbox:"):
                yield f"item {item} of {uid} is there and nobody sent it"
        for call in self._living(self.ledger.acknowledged("cancel")):
            place = (call.session, call.given["id"])
            row = self.items.get(place)
            if call.answer == "cancelled" and (place in self.heard or (row and row["state"] != "cancelled")):
                yield f"item {place} was cancelled and is {row and row['state']}, heard as {self.heard.get(place)}"

    # -- turns ---------------------------------------------------------------------------------------------------------

    def _turns(self) -> Iterator[str]:
        for call in self._living(self.ledger.acknowledged("open_turn", "take")):
            turn = call.answer["turn"] if call.op == "open_turn" else call.given["turn"]
            taken = call.answer["items"] if call.op == "open_turn" else call.answer
            row = self.turns.get((call.session, turn))
            if turn is None:
                continue
            if row is None:
                if not self.swept or (call.session, turn) not in self.commits:
                    yield f"turn {turn} was acknowledged and is not there"
            elif not set(taken) <= set(_ids(row["items"])):
                yield f"turn {turn} took {taken} and has {_ids(row['items'])}"
        for call in self._living(self.ledger.acknowledged("request_cancel")):
            row = self.turns.get((call.session, call.given["turn"]))
            if row is not None and row["cancel_request"] != call.answer:
                yield f"the request {call.answer} to stop turn {row['id']} was acknowledged and is not there"
            if row is not None and row["state"] == "settled" and row["outcome"] != "cancelled":
                yield f"turn {row['id']} was asked to stop and ended as {row['outcome']}"
        for call in self._living(self.ledger.acknowledged("park")):
            row = self.turns.get((call.session, call.given["turn"]))
            if not self._followed(call) and (row is None or row["state"] != "parked"):
                yield f"turn {call.given['turn']} was parked, nobody touched it, and it is {row and row['state']}"

    def _followed(self, call: Call) -> bool:
        """Whether anybody may have done something in the session since."""
        others = (other for other in self.ledger.calls if other is not call and other.given["session"] == call.session)
        return any(other.ended is None or other.ended > call.began for other in others)

    def _journal(self) -> Iterator[str]:
        journal = self._by("journal", "turn", "key")
        outcomes: dict[tuple[str, str, str], set[str]] = defaultdict(set)
        for call in self._living(self.ledger.acknowledged("record")):
            turn, key, outcome = call.given["turn"], call.given["key"], call.given["outcome"]
            commit = self.commits.get((call.session, turn))
            if outcome is not None:
                outcomes[call.session, turn, key].add(outcome)
            if commit is not None:
                said = [_said(node) for node in self.nodes[call.session, commit["revision"]]]
                if outcome is not None and f"{key}={outcome}" not in said:
                    yield f"{key} of turn {turn} came to {outcome}, and the turn committed {said}"
                continue
            row = journal.get((call.session, turn, key))
            if row is None:
                yield f"{key} of turn {turn} was recorded and is not there"
            elif outcome is not None and _value(row["outcome"]) != outcome:
                yield f"{key} of turn {turn} came to {outcome}, and the journal says {row['outcome']}"
        for place, found in outcomes.items():
            if len(found) > 1:
                yield f"{place} has {len(found)} outcomes, all acknowledged: {found}"

    # -- commits -------------------------------------------------------------------------------------------------------

    def _commits(self) -> Iterator[str]:
        attempts: dict[tuple[str, str], list[Call]] = defaultdict(list)
        for call in self._living(self.ledger.possible("commit")):
            attempts[call.session, call.given["operation"]].append(call)
        for call in self._living(self.ledger.acknowledged("commit")):
            row = self.commits.get((call.session, call.given["operation"]))
            told = (call.answer["revision"], call.answer["seq"], call.answer["hash"])
            if row is None:
                yield f"commit {call.given['operation']} was acknowledged and is not there"
            elif (row["revision"], row["seq"], row["content_hash"]) != told:
                yield f"commit {call.given['operation']} was acknowledged as {told} and is {row}"
            elif list(self._differences(call, row)):
                yield from self._differences(call, row)
        for (uid, operation), row in self.commits.items():
            if uid in self.doomed:
                continue
            differences = [list(self._differences(call, row)) for call in attempts[uid, operation]]
            if not differences:
                yield f"commit {operation} is there and nobody made it"
            elif all(differences):
                yield f"commit {operation} is not what anybody wanted: {differences}"
        yield from self._revisions()

    def _differences(self, call: Call, row: Row) -> Iterator[str]:
        """How a commit differs from what its maker asked for."""
        given, number, revision = call.given, row["session"], row["revision"]
        uid = self.uids[number]
        bodies = [hashlib.sha256(node["body"].encode()).hexdigest() for node in self.nodes[uid, revision]]
        if bodies != given["nodes"] or revision != given["base"] + 1:
            yield f"revision {revision} of {uid} has nodes {bodies}, not {given['nodes']} after {given['base']}"
        place = (number, revision)
        if self.output[place] != given["output"]:
            yield f"revision {revision} of {uid} counts {self.output[place]}, not {given['output']}"
        if self.parts[place] != given["parts"]:
            yield f"revision {revision} of {uid} has parts {self.parts[place]}, not {given['parts']}"
        owed, asked = self.owed[place], len(given["owes"])
        if owed != asked and not (self.swept and owed < asked):
            yield f"revision {revision} of {uid} owes {owed} debts, not {given['owes']}"
        metadata = given["metadata"]
        if metadata is not None and not self.swept and (number, json.dumps(metadata)) not in self.metadata:
            yield f"revision {revision} of {uid} left no metadata {metadata}"
        missing = set(given["blobs"]) - self.blobs.keys()
        if missing:
            yield f"revision {revision} of {uid} has lost its blobs {missing}"

    def _revisions(self) -> Iterator[str]:
        """The history of each session has no gap, and nothing beside it."""
        revisions: dict[str, list[int]] = defaultdict(list)
        for (uid, _), row in self.commits.items():
            revisions[uid].append(row["revision"])
        for uid, found in revisions.items():
            head = self.sessions[uid]["revision"]
            if uid not in self.doomed and sorted(found) != list(range(1, head + 1)):
                yield f"session {uid} is at revision {head} and has the commits {sorted(found)}"
        for uid, revision in self.nodes:
            if uid not in self.doomed and revision not in revisions[uid]:
                yield f"nodes of revision {revision} of {uid} are there without their commit"

    def _debts(self) -> Iterator[str]:
        outbox = self._by("outbox", "operation", "ordinal")
        paid = Counter((uid, row["key"]) for (uid, _), row in self.items.items() if row["key"])
        for call in self.ledger.acknowledged("deliver"):
            place = (call.given["source"], call.given["operation"], call.given["ordinal"])
            row = outbox.get(place)
            if row is None and not self.swept and call.given["source"] not in self.doomed:
                yield f"the debt {place} is not there"
            if row is not None and row["state"] == "owed":
                yield f"the debt {place} was delivered and is still owed"
            if call.answer is None or call.session in self.doomed:
                continue
            times = paid[call.session, "outbox:" + ":".join(map(str, place))]
            if times != 1 and not (times == 0 and self._may_be_swept((call.session, call.answer))):
                yield f"the debt {place} was delivered and is there {times} times"

    def _waits(self) -> Iterator[str]:
        waits = self._by("waits", "id")
        values: dict[str, set[str]] = defaultdict(set)
        for call in self._living(self.ledger.acknowledged("answer")):
            row = waits.get((call.session, call.given["wait"]))
            values[call.given["wait"]].add(str(call.answer["value"]))
            if not call.answer["accepted"]:
                continue
            if row is None and not self.swept:
                yield f"the answer {call.given['value']} was accepted and its wait is not there"
            elif row is not None and (row["state"], _value(row["answer"])) != ("answered", call.given["value"]):
                yield f"the answer {call.given['value']} was accepted and the wait is {row['state']}: {row['answer']}"
        for wait, found in values.items():
            if len(found) > 1:
                yield f"wait {wait} has told {found}"

    # -- the fence -----------------------------------------------------------------------------------------------------

    def _fence(self) -> Iterator[str]:
        """One owner per generation, and nothing by an owner after it was displaced."""
        owners: dict[tuple[str, int], set[str]] = defaultdict(set)
        taken: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for call in self.ledger.acknowledged("open_turn"):
            generation = call.answer["generation"]
            if generation is not None:
                owners[call.session, generation].add(call.given["owner"])
                taken[call.session].append((call.ended or 0, generation))
                if generation > self.sessions[call.session]["lease_generation"]:
                    yield f"generation {generation} of {call.session} was given out and is forgotten"
        for place, found in owners.items():
            if len(found) > 1:
                yield f"generation {place} was given to {found}"
        for call in self.ledger.acknowledged("record", "take", "park", "renew", "release", "commit"):
            # The receipt of what was committed before is given to anybody, and so is the end of what was released.
            if call.unsure or (call.op == "commit" and self._was_committed_before(call)):
                continue
            later = [g for ended, g in taken[call.session] if ended < call.began and g > call.given["generation"]]
            if later:
                yield f"{call.op} of {call.given['owner']} passed under {call.given['generation']}, after {later}"
        yield from self._order()

    def _was_committed_before(self, call: Call) -> bool:
        same = [c for c in self.ledger.acknowledged("commit") if c.given["operation"] == call.given["operation"]]
        return any(other is not call and (other.ended or 0) < call.began for other in same)

    def _order(self) -> Iterator[str]:
        """In the order in which a session's events landed generations never go back."""
        events: dict[str, dict[int, int]] = defaultdict(dict)
        for call in self._living(self.ledger.acknowledged("record", "commit")):
            seq = call.answer["seq"]
            generation = call.given["generation"]
            known = events[call.session].get(seq, generation)  # a repetition is told the place of the first
            events[call.session][seq] = min(known, generation)
        for uid, found in events.items():
            generations = [found[seq] for seq in sorted(found)]
            if generations != sorted(generations):
                yield f"the events of {uid} were written under the generations {generations}"

    # -- repetitions ---------------------------------------------------------------------------------------------------

    def _repetitions(self) -> Iterator[str]:
        """The same call again is answered as it was the first time."""
        places: dict[tuple[str, str], set[int]] = defaultdict(set)
        for call in self.ledger.acknowledged("admit"):
            places[call.session, call.given["id"]].add(call.answer["seq"])
        for place, seqs in places.items():
            if len(seqs) > 1 and not self.swept:
                yield f"item {place} was given the places {seqs}"
        for call in self.ledger.calls:
            if call.refused in ("KeyReused", "IdReused", "OutcomeRecorded", "ReplayMismatch"):
                yield f"{call.op} was refused as {call.refused}: {call.given}"
            if call.refused == "OperationReused" and call.session not in self.doomed:
                row = self.commits.get((call.session, call.given["operation"]))
                if row is None or not list(self._differences(call, row)):
                    yield f"commit {call.given['operation']} was refused for the sake of another, which is not there"

    # -- at the end ----------------------------------------------------------------------------------------------------

    def unfinished(self) -> Iterator[str]:
        for (uid, turn), row in self.turns.items():
            if row["state"] != "settled":
                yield f"turn {turn} of {uid} is {row['state']}"
        for (uid, item), row in self.items.items():
            if row["state"] not in ("completed", "cancelled"):
                yield f"item {item} of {uid} is {row['state']}"
            if row["state"] == "completed" and len(self.heard[uid, item]) != 1:
                yield f"item {item} of {uid} is completed and was heard {len(self.heard[uid, item])} times"
        for row in self.tables["outbox"]:
            if row["state"] == "owed":
                yield f"a debt of {self.uids[row['session']]} is still owed"


def _text_of(item: Row) -> str:
    body = json.loads(item["body"])
    return str(body["parts"][0]["text"] if body["kind"] == "message" else body["data"])


def _said(node: Row) -> str | None:
    parts = json.loads(node["body"]).get("parts") or [{}]
    return parts[0].get("text")


def _ids(joined: str) -> list[str]:
    return [joined[start : start + 32] for start in range(0, len(joined), 32)]


def _value(text: str | None) -> Any:
    """What is inside of a record that lash has put around somebody's JSON."""
    return None if text is None else json.loads(text)["json"]
