"""What a payload looks like: the fields of every kind of node, item and part, and the blobs that they refer to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lash.fsck.decoding import Malformed, Record, record

Check = Callable[[Any], bool]


def _string(low: int = 0, high: int | None = None) -> Check:
    return lambda value: isinstance(value, str) and low <= len(value) and (high is None or len(value) <= high)


def _maybe(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _one_of(*choices: str) -> Check:
    return lambda value: value in choices


def _list_of(check: Check, least: int = 0) -> Check:
    return lambda value: isinstance(value, list) and len(value) >= least and all(map(check, value))


def _anything(value: Any) -> bool:
    return True


def _object(value: Any) -> bool:
    return isinstance(value, dict)


def _boolean(value: Any) -> bool:
    return isinstance(value, bool)


def _whole_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _hex(digits: int) -> Check:
    return lambda value: isinstance(value, str) and len(value) == digits and set(value) <= set("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class Shape:
    """The fields of an object: those that it must have, and those that it may have. There are no others."""

    required: Mapping[str, Check]
    optional: Mapping[str, Check]

    def fits(self, value: object) -> bool:
        if not isinstance(value, dict) or not self.required.keys() <= value.keys():
            return False
        checks = {**self.required, **self.optional}
        return all(name in checks and checks[name](found) for name, found in value.items())


def _shape(required: Mapping[str, Check], **optional: Check) -> Shape:
    return Shape(required, optional)


def _kind(shapes: Mapping[str, Shape]) -> Check:
    """An object that says its kind and has that kind's shape."""

    def check(value: Any) -> bool:
        if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
            return False
        shape = shapes.get(value["kind"])
        return shape is not None and shape.fits({name: found for name, found in value.items() if name != "kind"})

    return check


_text = _string()
_HASH = _hex(64)
_SEEN = {
    "text": _shape({"text": _text}),
    "image": _shape({"blob": _HASH, "media_type": _text}),
    "file": _shape({"blob": _HASH, "media_type": _text, "name": _text}),
}
_PARTS = {
    **_SEEN,
    "reasoning": _shape({"text": _text}, signature=_maybe(_text)),
    "tool_call": _shape({"call_id": _text, "tool": _text}, arguments=_anything),
    "tool_result": _shape({"call_id": _text, "tool": _text}, content=_list_of(_kind(_SEEN)), failed=_boolean),
}
_parts = _list_of(_kind(_PARTS))

NODES: Mapping[str, Shape] = {
    "frame_opened": _shape({"reason": _string(1, 64)}, config=_object, protocol_options=_object),
    "message_received": _shape({"parts": _parts}, item=_maybe(_text)),
    "model_replied": _shape({"parts": _parts, "model": _text}, finish=_text),
    "tools_returned": _shape({"parts": _parts}),
    "noted": _shape({"parts": _parts, "about": _text}),
    "plugin_recorded": _shape({"plugin": _string(1, 128)}, data=_anything, refers_to=_list_of(_HASH)),
}
ITEMS: Mapping[str, Shape] = {
    "message": _shape({"parts": _list_of(_kind(_PARTS), least=1)}),
    "command": _shape({"name": _string(1, 64)}, arguments=_object),
    "wake": _shape({"source": _string(1, 128)}, data=_anything),
}
OWED = _shape(
    {
        "to": _hex(32),
        "body": _text,
        "when": _one_of("now", "next"),
        "boundary": _one_of("after_work", "before_completion"),
        "merge_key": _maybe(_text),
        "options": _object,
        "available_at": _maybe(_whole_number),
    }
)
IDENTITY = _shape(
    {"kind": _text, "step": _whole_number},
    call_id=_maybe(_text),
    tool_id=_maybe(_text),
    arguments_hash=_maybe(_text),
)


def node_payload(kind: str, body: str) -> dict[str, Any]:
    """The fields of a node's body, or Malformed."""
    found = record(body)
    if kind not in NODES:
        raise Malformed("payload-malformed", f"one of the kinds {', '.join(NODES)}", kind)
    if not NODES[kind].fits(found.fields):
        raise Malformed("payload-malformed", f"the fields of {kind}", body)
    return found.fields


def item_payload(kind: str, body: Record) -> dict[str, Any]:
    """The fields of an item's body, or Malformed. ``kind`` is what the row says."""
    if body.fields.get("kind") != kind:
        raise Malformed("payload-malformed", f"the kind {kind}", body.fields.get("kind"))
    if not _kind(ITEMS)(body.fields):
        raise Malformed("payload-malformed", f"the fields of a {kind}", body.text)
    return body.fields


def owed_payload(body: Record) -> tuple[dict[str, Any], dict[str, Any]]:
    """What an outbox row owes, and the item in it; or Malformed."""
    if not OWED.fits(body.fields):
        raise Malformed("payload-malformed", "the fields of an outbox item", body.text)
    item = record(body.fields["body"])
    return body.fields, item_payload(str(item.fields.get("kind")), item)


def blobs_in(payload: Mapping[str, Any]) -> frozenset[str]:
    """The hashes that a payload which fits its shape refers to."""
    return frozenset((*payload.get("refers_to", ()), *_blobs_of(payload.get("parts", ()))))


def _blobs_of(parts: list[dict[str, Any]]) -> Iterator[str]:
    for part in parts:
        if "blob" in part:
            yield part["blob"]
        yield from _blobs_of(part.get("content", []))
