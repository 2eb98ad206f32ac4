"""Strategies that several property tests draw from."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st

from lash.graph.nodes import FrameOpened, MessageReceived, ModelReplied, Noted, Payload, PluginRecorded, ToolsReturned
from lash.graph.parts import File, Image, Part, Reasoning, Text, ToolCall, ToolResult
from lash.ids import BlobHash, ItemId

hundred_examples = settings(max_examples=100, deadline=None)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
"""Text of any characters but lone surrogates, which no encoding can carry."""

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)
json_objects = st.dictionaries(texts, json_values, max_size=3)

blobs = st.sampled_from([BlobHash(digit * 64) for digit in "abc"])
text_parts = st.builds(Text, text=texts)
images = st.builds(Image, blob=blobs, media_type=texts)
files = st.builds(File, blob=blobs, media_type=texts, name=texts)
parts: st.SearchStrategy[Part] = st.one_of(
    text_parts,
    st.builds(Reasoning, text=texts, signature=st.none() | texts),
    st.builds(ToolCall, call_id=texts, tool=texts, arguments=json_values),
    st.builds(
        ToolResult,
        call_id=texts,
        tool=texts,
        content=st.lists(text_parts | images | files, max_size=2).map(tuple),
        failed=st.booleans(),
    ),
    images,
    files,
)
several_parts = st.lists(parts, max_size=3).map(tuple)

frames = st.builds(
    FrameOpened,
    reason=st.sampled_from(["initial", "compaction", "continue_as", "reset", "a plugin's own"]),
    config=json_objects,
    protocol_options=json_objects,
)
payloads: st.SearchStrategy[Payload] = st.one_of(
    frames,
    st.builds(MessageReceived, parts=several_parts, item=st.none() | st.just(ItemId("e" * 32))),
    st.builds(ModelReplied, parts=several_parts, model=texts, finish=texts),
    st.builds(ToolsReturned, parts=several_parts),
    st.builds(Noted, parts=several_parts, about=texts),
    st.builds(
        PluginRecorded,
        plugin=st.just("notes"),
        data=json_values,
        refers_to=st.lists(blobs, max_size=2).map(tuple),
    ),
)
