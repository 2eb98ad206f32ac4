"""AgentFrame: where the model's memory begins. Opening one hides older nodes; it never removes them."""

from __future__ import annotations

from dataclasses import dataclass

from lash.encoding import JsonObject
from lash.errors import CorruptGraph
from lash.graph.nodes import FrameOpened, Node
from lash.ids import NodeId

INITIAL = "initial"
RESET = "reset"
COMPACTION = "compaction"


@dataclass(frozen=True, slots=True)
class AgentFrame:
    """The frame that a FrameOpened node opened. ``reason`` is an open vocabulary: whatever a plugin says."""

    id: NodeId
    depth: int
    reason: str
    config: JsonObject
    protocol_options: JsonObject


def frame_of(node: Node) -> AgentFrame:
    payload = node.payload
    if not isinstance(payload, FrameOpened):
        raise CorruptGraph(f"node {node.id} should open a frame, but is {node.kind!r}")
    return AgentFrame(node.id, node.depth, payload.reason, payload.config, payload.protocol_options)
