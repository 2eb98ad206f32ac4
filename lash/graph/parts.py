"""The neutral pieces that messages are made of. No vendor's type is ever stored."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from lash.encoding import JsonObject
from lash.ids import BlobHash


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Text(_Part):
    kind: Literal["text"] = "text"
    text: str

    def encode(self) -> JsonObject:
        return {"kind": self.kind, "text": self.text}


class Reasoning(_Part):
    """What a model thought. ``signature`` is the vendor's seal, without which some refuse to read it again."""

    kind: Literal["reasoning"] = "reasoning"
    text: str
    signature: str | None = None

    def encode(self) -> JsonObject:
        body: JsonObject = {"kind": self.kind, "text": self.text}
        if self.signature is not None:
            body["signature"] = self.signature
        return body


class ToolCall(_Part):
    """A model asks for a tool. ``arguments`` is what it wrote, checked by nobody yet."""

    kind: Literal["tool_call"] = "tool_call"
    call_id: str
    tool: str
    arguments: JsonValue = None

    def encode(self) -> JsonObject:
        return {"kind": self.kind, "call_id": self.call_id, "tool": self.tool, "arguments": self.arguments}


class ToolResult(_Part):
    """What became of a tool call, as the model will read it."""

    kind: Literal["tool_result"] = "tool_result"
    call_id: str
    tool: str
    content: tuple[Text | Image | File, ...] = ()
    failed: bool = False

    def encode(self) -> JsonObject:
        body: JsonObject = {
            "kind": self.kind,
            "call_id": self.call_id,
            "tool": self.tool,
            "content": [part.encode() for part in self.content],
        }
        if self.failed:
            body["failed"] = True
        return body


class Image(_Part):
    kind: Literal["image"] = "image"
    blob: BlobHash
    media_type: str

    def encode(self) -> JsonObject:
        return {"kind": self.kind, "blob": self.blob, "media_type": self.media_type}


class File(_Part):
    kind: Literal["file"] = "file"
    blob: BlobHash
    media_type: str
    name: str

    def encode(self) -> JsonObject:
        return {"kind": self.kind, "blob": self.blob, "media_type": self.media_type, "name": self.name}


ToolResult.model_rebuild()

Part = Annotated[Text | Reasoning | ToolCall | ToolResult | Image | File, Field(discriminator="kind")]


def encode_parts(parts: tuple[Part, ...]) -> list[JsonValue]:
    return [part.encode() for part in parts]


def blobs_of(parts: tuple[Part, ...]) -> frozenset[BlobHash]:
    """The blobs that these parts refer to, those inside tool results included."""
    found: set[BlobHash] = set()
    for part in parts:
        if isinstance(part, Image | File):
            found.add(part.blob)
        elif isinstance(part, ToolResult):
            found |= blobs_of(part.content)
    return frozenset(found)
