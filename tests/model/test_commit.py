"""Commits: every field comes back, and no bytes lead to anything but Malformed."""

import enum
import json
import math
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstore.errors import InvalidInput, Malformed
from chainstore.ids import ObjectId
from chainstore.model.commit import Note, Stats, decode_commit, encode_commit
from chainstore.model.wire import decode, encode
from chainstore.testing.strategies import nodes

QUICK = settings(deadline=None, max_examples=150)
ROOT, ID = ObjectId(bytes(range(32))), ObjectId(b"i" * 32)

ids = st.binary(min_size=32, max_size=32).map(ObjectId)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
notes = st.builds(
    Note,
    message=st.text(max_size=20),
    author=st.text(max_size=20),
    step=st.none() | st.integers(),
    epoch=st.none() | st.integers(),
    metrics=st.dictionaries(st.text(max_size=5), st.floats(), max_size=3),
    meta=st.dictionaries(st.text(max_size=5), json_values, max_size=3),
)
sizes = st.integers(0, 2**62)
stats = st.builds(Stats, sizes, sizes, sizes, sizes)
times = st.integers(0, 4_000_000_000_000_000)


@QUICK
@given(st.lists(ids, max_size=3), notes, times, stats)
def test_every_field_of_a_commit_comes_back(parents, note, time_us, sizes):
    commit = decode_commit(ID, encode_commit(ROOT, parents, note, time_us, sizes))
    assert (commit.id, commit.tree, commit.parents) == (ID, ROOT, tuple(parents))
    assert (commit.step, commit.epoch) == (note.step, note.epoch)
    assert (commit.author, commit.message, commit.meta) == (note.author, note.message, note.meta)
    assert {k: v.hex() for k, v in commit.metrics.items()} == {k: v.hex() for k, v in note.metrics.items()}
    assert commit.time == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)
    assert commit.stats == sizes


def test_metrics_that_are_no_numbers_in_the_usual_sense_come_back():
    note = Note(metrics={"nan": math.nan, "inf": math.inf, "zero": -0.0})
    found = decode_commit(ID, encode_commit(ROOT, [], note, 0, Stats())).metrics
    assert math.isnan(found["nan"])
    assert found["inf"] == math.inf
    assert math.copysign(1, found["zero"]) == -1


class Epoch(enum.IntEnum):
    FIRST = 1


def test_integers_of_other_types_are_stored_as_plain_ones():
    commit = decode_commit(ID, encode_commit(ROOT, [], Note(step=Epoch.FIRST, epoch=Epoch.FIRST), 0, Stats()))
    assert type(commit.step) is int
    assert type(commit.epoch) is int


BAD_NOTES = {
    "a step of true": {"step": True},
    "a step of 1.5": {"step": 1.5},
    "an epoch that is text": {"epoch": "3"},
    "a metric that is text": {"metrics": {"loss": "low"}},
    "a message that is bytes": {"message": b"m"},
    "half a surrogate pair": {"message": "\ud800"},
    "half a surrogate pair in meta": {"meta": {"a": "\ud800"}},
    "meta with a tuple": {"meta": {"a": (1,)}},
    "meta with a number for a key": {"meta": {1: 2}},
    "meta that goes on and on": {"meta": {"a": json.loads("[" * 80 + "]" * 80)}},
}


@pytest.mark.parametrize("fields", BAD_NOTES.values(), ids=BAD_NOTES)
def test_a_note_that_cannot_be_stored_is_refused(fields):
    with pytest.raises(InvalidInput):
        encode_commit(ROOT, [], Note(**fields), 0, Stats())


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=200) | nodes().map(encode))
def test_no_bytes_at_all_lead_to_another_error(data):
    with pytest.raises(Malformed):
        decode_commit(ID, data)


@QUICK
@given(st.lists(ids, max_size=2), notes, st.integers(0, 10), nodes(max_leaves=4))
def test_a_commit_with_one_field_of_any_type_is_refused_or_read(parents, note, place, value):
    fields = decode(encode_commit(ROOT, parents, note, 5, Stats(1, 1, 1, 0)))
    fields[place] = value
    with suppress(Malformed):
        commit = decode_commit(ID, encode(fields))
        assert isinstance(commit.message, str)
        assert type(commit.step) in (int, type(None))
        assert type(commit.meta) is dict


WRONG = {
    "time": (5, 1 << 80),
    "meta that nests without end": (9, "[" * 100_000),
    "meta that is no object": (9, "[1]"),
    "meta that is no JSON": (9, "{"),
    "a metric twice": (8, [["a", bytes(8)], ["a", bytes(8)]]),
    "a metric of four bytes": (8, [["a", bytes(4)]]),
    "three numbers": (10, [1, 2, 3]),
    "a number below zero": (10, [1, 2, 3, -4]),
    "true for a number": (10, [1, 2, 3, True]),
    "true for a step": (3, True),
    "a short parent": (2, [bytes(31)]),
    "a parent that is no id": (2, [5]),
    "another code": (0, 2),
}


@pytest.mark.parametrize(("place", "value"), WRONG.values(), ids=WRONG)
def test_a_commit_that_makes_no_sense_is_malformed(place, value):
    fields = decode(encode_commit(ROOT, [], Note(), 5, Stats()))
    fields[place] = value
    with pytest.raises(Malformed):
        decode_commit(ID, encode(fields))


@given(stats, stats)
def test_stats_add_up(a, b):
    both = a + b
    assert both.raw_bytes == a.raw_bytes + b.raw_bytes
    assert both.reused_bytes == a.reused_bytes + b.reused_bytes
    assert both.seconds is None
