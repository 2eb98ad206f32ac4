"""What the golden files hold. The name of a sample is the name of its file; a node's begins with its kind."""

from __future__ import annotations

from datetime import UTC, datetime

from lash.commit.outbox import Owed
from lash.commit.parts import Changed, Kept
from lash.commit.plan import CommitPlan
from lash.commit.usage import Tokens, UsageDelta
from lash.graph.delta import Append, MoveHead
from lash.graph.nodes import (
    FrameOpened,
    MessageReceived,
    ModelReplied,
    Node,
    Noted,
    Payload,
    PluginRecorded,
    ToolsReturned,
)
from lash.graph.parts import File, Image, Reasoning, Text, ToolCall, ToolResult
from lash.ids import BlobHash, ItemId, NodeId, OperationId, OwnerId, RequestId, SessionUid, TurnId
from lash.inbox.items import Command, Message, NewItem, Wake
from lash.lease import ExecutionLease
from lash.turn.record import TurnSettlement

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
SESSION, OTHER = SessionUid("5" * 32), SessionUid("6" * 32)
ITEM, TURN, OPERATION = ItemId("e" * 32), TurnId("7" * 32), OperationId("1" * 32)
PICTURE, REPORT = BlobHash("a" * 64), BlobHash("b" * 64)

NODES: dict[str, Payload] = {
    "frame_opened.least": FrameOpened(reason="initial"),
    "frame_opened.most": FrameOpened(
        reason="compaction", config={"model": "m", "limits": {"steps": 9, "cost": 0.5}}, protocol_options={"tools": []}
    ),
    "message_received.least": MessageReceived(parts=(Text(text="Where is my order 7?"),)),
    "message_received.most": MessageReceived(
        parts=(
            Text(text='Zürich 🙂 "quoted"\n\u2028'),
            Image(blob=PICTURE, media_type="image/png"),
            File(blob=REPORT, media_type="text/plain", name="report.txt"),
        ),
        item=ITEM,
    ),
    "model_replied.least": ModelReplied(parts=(Text(text="On its way."),), model="m"),
    "model_replied.most": ModelReplied(
        parts=(
            Reasoning(text="Let me look."),
            Reasoning(text="", signature="c2VhbA=="),
            ToolCall(call_id="call-1", tool="find_order", arguments={"order_id": "7", "deep": [None, True, -0.0]}),
            ToolCall(call_id="call-2", tool="now"),
        ),
        model="anthropic:m",
        finish="tool_calls",
    ),
    "tools_returned.least": ToolsReturned(parts=(ToolResult(call_id="call-1", tool="now"),)),
    "tools_returned.most": ToolsReturned(
        parts=(
            ToolResult(
                call_id="call-1",
                tool="find_order",
                content=(Text(text="sent"), Image(blob=PICTURE, media_type="image/png")),
            ),
            ToolResult(call_id="call-2", tool="now", content=(Text(text="no clock"),), failed=True),
        )
    ),
    "noted": Noted(parts=(Text(text="The order is 7."),), about="summary"),
    "plugin_recorded.least": PluginRecorded(plugin="notes"),
    "plugin_recorded.most": PluginRecorded(
        plugin="notes", data={"b": [1, 1.0, 1e300, 12345678901234567890], "a": ""}, refers_to=(REPORT, PICTURE)
    ),
}

ITEMS: dict[str, Message | Command | Wake] = {
    "message": Message(parts=(Text(text="hello"), Image(blob=PICTURE, media_type="image/png"))),
    "command.least": Command(name="reset"),
    "command.most": Command(name="compact", arguments={"keep": ["order", 7]}),
    "wake.least": Wake(source="timer"),
    "wake.most": Wake(source="child", data={"outcome": "finished"}),
}

OWED: dict[str, Owed] = {
    "least": Owed(OTHER, ITEMS["wake.least"]),
    "most": Owed(
        OTHER,
        ITEMS["message"],
        when="now",
        boundary="before_completion",
        merge_key="m",
        options={"steps": 3},
        available_at=AT,
    ),
}

ITEM_HASHES: dict[str, NewItem] = {
    "least": NewItem(ITEM, ITEMS["wake.least"]),
    "most": NewItem(
        ITEM,
        ITEMS["message"],
        key="k",
        when="now",
        boundary="before_completion",
        merge_key="m",
        options={"steps": 3, "a": None},
    ),
}

_LEASE = ExecutionLease(SESSION, OwnerId("me"), 4, AT)
_NOTED = Node(
    NodeId(f"{SESSION}-{OPERATION}-0"), None, 3, 0, "noted", '{"about":"summary","parts":[],"v":1}', AT, seq=9
)

COMMIT_HASHES: dict[str, CommitPlan] = {
    "unchanged": CommitPlan(OPERATION, _LEASE, base=0),
    "rewind": CommitPlan(OPERATION, _LEASE, base=3, delta=MoveHead(NodeId(f"{SESSION}-{OPERATION}-0"))),
    "turn": CommitPlan(
        OPERATION,
        _LEASE,
        base=3,
        delta=Append((_NOTED,)),
        settles=TurnSettlement(
            TURN,
            "cancelled",
            completes=frozenset({ITEM, ItemId("f" * 32)}),
            gives_back=frozenset({ItemId("d" * 32)}),
            cancelled_by=RequestId("c" * 32),
            summary={"attempts": 1},
        ),
        parts={"tools": Changed(b"state"), "notes": Kept(REPORT)},
        usage=(UsageDelta("agent", "m", Tokens(5, 4, 3, 2, 1)),),
        owes=(OWED["least"],),
        documents={"config": {"model": "m"}},
    ),
}
