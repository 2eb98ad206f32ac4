from __future__ import annotations

import pytest

from lash.errors import CorruptGraph
from lash.graph.frames import AgentFrame, frame_of
from lash.graph.nodes import Node
from lash.ids import NodeId

from ..samples import NOW


def test_a_frame_is_what_the_node_that_opened_it_says() -> None:
    body = '{"config":{"model":"m"},"protocol_options":{"steps":9},"reason":"a plugin said so","v":1}'
    node = Node(NodeId("n-1"), NodeId("n-0"), 12, 12, "frame_opened", body, NOW)
    assert frame_of(node) == AgentFrame(NodeId("n-1"), 12, "a plugin said so", {"model": "m"}, {"steps": 9})


def test_a_node_of_another_kind_in_the_place_of_a_frame_is_corruption() -> None:
    node = Node(NodeId("n-1"), None, 0, 0, "noted", '{"about":"x","parts":[],"v":1}', NOW)
    with pytest.raises(CorruptGraph, match=r"n-1 should open a frame, but is 'noted'"):
        frame_of(node)
