"""Changes: lines of the log come back, and no bytes lead to anything but Malformed or FormatTooNew."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstore.errors import FormatTooNew, Malformed
from chainstore.ids import ObjectId
from chainstore.model.change import (
    Checkpoint,
    Dead,
    Expired,
    Incident,
    Mark,
    MarkLine,
    PackGrown,
    PackLine,
    ReflogLine,
    Retired,
    SetConfig,
    SetKeyring,
    SetRef,
    Swept,
    Unmark,
    decode_changes,
    encode_changes,
)
from chainstore.model.wire import encode
from chainstore.testing.strategies import nodes

QUICK = settings(deadline=None, max_examples=150)

ids = st.binary(min_size=32, max_size=32).map(ObjectId)
targets = ids | st.none() | st.text(max_size=10)
packs = st.binary(min_size=16, max_size=16)
numbers = st.integers(0, 2**63 - 1)
times = st.integers(-(2**62), 2**62)
ranges = st.lists(st.tuples(numbers, numbers).map(lambda pair: (min(pair), max(pair))), max_size=3).map(tuple)
commits = st.lists(ids, max_size=3).map(tuple)
texts = st.text(max_size=10)
points = st.builds(
    Checkpoint,
    st.binary(min_size=32, max_size=32),
    numbers,
    st.lists(st.tuples(texts, targets), max_size=3).map(tuple),
    st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
    st.lists(st.builds(MarkLine, ids, times, texts, st.booleans()), max_size=3).map(tuple),
    st.lists(st.builds(ReflogLine, texts, numbers, numbers, targets, targets, times, texts), max_size=3).map(tuple),
    st.lists(st.builds(PackLine, packs, numbers, numbers, ranges, st.booleans()), max_size=3).map(tuple),
)
changes = st.one_of(
    st.builds(SetRef, texts, targets, targets, texts),
    st.tuples(packs, st.tuples(numbers, numbers).map(sorted), numbers).map(lambda t: PackGrown(t[0], *t[1], t[2])),
    st.builds(SetConfig, texts, texts | st.none()),
    st.builds(Mark, commits, texts),
    st.builds(Unmark, commits),
    st.builds(Swept, commits),
    st.builds(Dead, packs, ranges),
    st.builds(Retired, packs),
    st.builds(SetKeyring, numbers),
    st.builds(Incident, texts),
    st.builds(Expired, numbers),
    points,
)


@QUICK
@given(times, st.lists(changes, max_size=4))
def test_changes_come_back(time_us, found):
    assert decode_changes(encode_changes(time_us, found)) == (time_us, tuple(found))


@settings(deadline=None, max_examples=400)
@given(st.binary(max_size=100) | nodes().map(encode))
def test_no_bytes_at_all_lead_to_another_error(data):
    with suppress(Malformed, FormatTooNew):
        decode_changes(data)


rows = st.lists(st.lists(nodes(max_leaves=3) | targets | numbers, max_size=7), max_size=2)
items = nodes(max_leaves=3) | targets | packs | numbers | rows | st.binary(max_size=70)
wild = st.tuples(st.integers(0, 14), st.lists(items, max_size=8)).map(lambda t: [t[0], *t[1]])


@settings(deadline=None, max_examples=600)
@given(st.integers(-5, 5), st.lists(wild, max_size=3))
def test_changes_with_any_fields_decode_to_what_encodes_again_or_are_refused(time_us, found):
    data = encode([time_us, [plain(change) for change in found]])
    with suppress(Malformed, FormatTooNew):
        again = encode_changes(*decode_changes(data))
        assert decode_changes(again) == decode_changes(data)


def plain(node: object) -> object:
    if isinstance(node, list):
        return [plain(item) for item in node]
    return bytes(node) if isinstance(node, ObjectId) else node


@QUICK
@given(points, st.data())
def test_a_damaged_checkpoint_is_refused_or_another_one(point, data):
    body = bytearray(encode_changes(7, [point]))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with suppress(Malformed, FormatTooNew):
        time_us, found = decode_changes(bytes(body))
        assert decode_changes(encode_changes(time_us, found)) == (time_us, found)


def test_a_change_of_a_newer_version_is_too_new():
    with pytest.raises(FormatTooNew):
        decode_changes(encode([0, [[13, b"?"]]]))


WRONG = {
    "a pack's name of 15 bytes": [2, bytes(15), 0, 1, 0],
    "a range that ends before it starts": [2, bytes(16), 5, 1, 0],
    "a range below zero": [7, bytes(16), [-5, 5]],
    "half a range": [7, bytes(16), [5]],
    "half an id": [4, bytes(33), "policy"],
    "a target of 31 bytes": [1, "heads/main", bytes(31), None, ""],
    "a number as a target": [1, "heads/main", 5, None, ""],
    "a keyring below zero": [9, -1],
    "reflogs that expire before line -1": [12, -1],
    "reflogs that expire before a text": [12, "5"],
    "a mark with a number for a flag": [11, bytes(32), 1, [], [], [[bytes(32), 1, "p", 1]], [], []],
    "a pack with a text for a length": [11, bytes(32), 1, [], [], [], [], [[bytes(16), "5", 0, [], False]]],
    "a setting of one item": [11, bytes(32), 1, [], [["a"]], [], [], []],
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_a_change_that_makes_no_sense_is_malformed(change):
    with pytest.raises(Malformed):
        decode_changes(encode([0, [change]]))
