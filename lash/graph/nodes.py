"""One frozen class per thing that can happen, and the node that keeps it.

A node's place (id, parent, depth, frame) lives in columns; its payload is a versioned JSON body, parsed only by those
who look inside. Adding an optional field to a payload must leave the encoding of old content as it was, so each payload
writes its body by hand and leaves out what is absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from lash.encoding import JsonObject, read_record, record
from lash.errors import CorruptRecord
from lash.graph.parts import Part, blobs_of, encode_parts
from lash.ids import BlobHash, ItemId, NodeId

NODE_VERSION = 1


class _Payload(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: ClassVar[str]

    def encode(self) -> JsonObject:
        raise NotImplementedError

    def blobs(self) -> frozenset[BlobHash]:
        return frozenset()


class FrameOpened(_Payload):
    """A new agent frame:

    the model's memory begins here. It records the config and options that the frame began with.
    """

    kind: ClassVar[str] = "frame_opened"
    reason: str = Field(min_length=1, max_length=64)
    config: JsonObject = {}
    protocol_options: JsonObject = {}

    def encode(self) -> JsonObject:
        body: JsonObject = {"reason": self.reason}
        if self.config:
            body["config"] = self.config
        if self.protocol_options:
            body["protocol_options"] = self.protocol_options
        return body


class _Spoken(_Payload):
    parts: tuple[Part, ...]

    def blobs(self) -> frozenset[BlobHash]:
        return blobs_of(self.parts)


class MessageReceived(_Spoken):
    """Input from outside, as it entered a turn. ``item`` is the inbox item it came from."""

    kind: ClassVar[str] = "message_received"
    item: ItemId | None = None

    def encode(self) -> JsonObject:
        body: JsonObject = {"parts": encode_parts(self.parts)}
        if self.item is not None:
            body["item"] = self.item
        return body


class ModelReplied(_Spoken):
    kind: ClassVar[str] = "model_replied"
    model: str
    finish: str = "stop"

    def encode(self) -> JsonObject:
        return {"parts": encode_parts(self.parts), "model": self.model, "finish": self.finish}


class ToolsReturned(_Spoken):
    """The results of one step's tool calls, in the order in which the model asked for them."""

    kind: ClassVar[str] = "tools_returned"

    def encode(self) -> JsonObject:
        return {"parts": encode_parts(self.parts)}


class Noted(_Spoken):
    """Text that the runtime puts before the model: a summary, a notice, an answer that it must know of."""

    kind: ClassVar[str] = "noted"
    about: str

    def encode(self) -> JsonObject:
        return {"parts": encode_parts(self.parts), "about": self.about}


class PluginRecorded(_Payload):
    """A plugin's own node. lash keeps it and never looks inside."""

    kind: ClassVar[str] = "plugin_recorded"
    plugin: str = Field(min_length=1, max_length=128)
    data: JsonValue = None
    refers_to: tuple[BlobHash, ...] = ()

    def encode(self) -> JsonObject:
        body: JsonObject = {"plugin": self.plugin, "data": self.data}
        if self.refers_to:
            body["refers_to"] = list(self.refers_to)
        return body

    def blobs(self) -> frozenset[BlobHash]:
        return frozenset(self.refers_to)


Payload = FrameOpened | MessageReceived | ModelReplied | ToolsReturned | Noted | PluginRecorded

PAYLOADS: Mapping[str, type[_Payload]] = {
    payload.kind: payload
    for payload in (FrameOpened, MessageReceived, ModelReplied, ToolsReturned, Noted, PluginRecorded)
}


@dataclass(frozen=True, slots=True)
class Node:
    """A fact and its place. ``frame`` is the depth at which its frame opened; ``seq`` the event it came with."""

    id: NodeId
    parent: NodeId | None
    depth: int
    frame: int
    kind: str
    body: str
    at: datetime
    seq: int = 0
    blobs: frozenset[BlobHash] = field(default=frozenset(), compare=False)
    """What the payload refers to; filled for nodes to be written, so that a commit need not look."""
    encoded: str | None = field(default=None, compare=False, repr=False)
    """The very text that was made from a payload a moment ago. A body that is this text need not be read to be
    believed; a body that was put in its place must be."""

    @property
    def payload(self) -> Payload:
        return decode_payload(self.kind, self.body, what=f"node {self.id}")

    @property
    def made_here(self) -> bool:
        """Whether the body is that very text."""
        return self.encoded is self.body and self.kind in PAYLOADS

    @property
    def opens_frame(self) -> bool:
        return self.kind == FrameOpened.kind


def encode_payload(payload: Payload) -> str:
    return record(NODE_VERSION, payload.encode(), what=f"a node {payload.kind!r}")


def decode_payload(kind: str, body: str, *, what: str) -> Payload:
    """The payload in a body. The version is checked before the rest is read."""
    fields: dict[str, Any] = dict(read_record(body, what=what, supported=NODE_VERSION))
    if kind not in PAYLOADS:
        raise CorruptRecord(what, f"unknown kind {kind!r}")
    try:
        return PAYLOADS[kind].model_validate(fields)  # type: ignore[return-value]  # PAYLOADS holds exactly Payload
    except ValidationError as error:
        raise CorruptRecord(what, f"not a {kind}: {error.error_count()} fields are wrong") from None
