"""Recent rows: the index gives what a dict would give, wherever a row stands; and damage is seen."""

import struct
import subprocess
import sys
import zlib
from pathlib import Path

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstore.errors import Damaged, StorageError
from chainstore.storage import recent
from chainstore.storage.index import Index
from chainstore.storage.rows import MAX_RUN_BYTES, RECENT, close_row, read_run, write_run

ONE, TWO = bytes(7) + b"\x01", bytes(7) + b"\x02"


@pytest.fixture
def index(tmp_path):
    with Index.create(tmp_path / "index") as opened:
        yield opened


def put(index: Index, rows: dict[bytes, bytes], table: str = "objects") -> None:
    with index.write() as writer:
        for key, value in rows.items():
            writer.put(table, key, value)


def in_pages(index: Index) -> tuple[int, int]:
    """Return how many rows the table of objects itself has, and how many runs there are."""
    with index.read() as reader:
        return reader._entries("objects"), reader._entries(RECENT)


def everything(index: Index) -> dict[bytes, bytes]:
    with index.read() as reader:
        found = dict(reader.scan("objects"))
        assert reader.count("objects") == len(found)
        assert list(found) == sorted(found) == [key for key, _ in reader.scan("objects", reverse=True)][::-1]
        assert reader.get_many("objects", [*found, b"none"]) == found
        assert all(reader.get("objects", key) == value for key, value in found.items())
        return found


# -- where rows stand


def test_what_a_small_transaction_adds_is_one_run(index):
    for number in range(3):
        put(index, {b"%d/%d" % (number, i): b"value" for i in range(20)})
        assert in_pages(index) == (0, number + 1)
    assert len(everything(index)) == 60


def test_runs_are_joined_and_in_the_end_their_rows_go_into_their_table(index):
    expected, runs = {}, []
    for number in range(400):
        rows = {struct.pack(">IQ", number * i % 97, number): b"%d" % number * 40 for i in range(20)}
        put(index, rows)
        expected |= rows
        runs.append((*in_pages(index), len(expected)))
    assert everything(index) == expected
    assert max(count for _, count, _ in runs) == recent.RUNS
    folded = [(rows, total) for rows, count, total in runs if not count]
    assert len(folded) > 1 and all(rows == total for rows, total in folded)


def test_what_a_large_transaction_adds_goes_into_its_table_and_leaves_runs_alone(index):
    put(index, {b"before": b""})
    put(index, {b"%d" % i: bytes(1000) for i in range(100)})
    assert in_pages(index) == (100, 1)
    assert len(everything(index)) == 101


@pytest.mark.parametrize("change", ["put", "delete", "put_new"])
def test_what_is_changed_while_it_is_recent_goes_into_its_table_first(index, change):
    put(index, {b"a": b"1", b"b": b"2"})
    with index.write() as writer:
        if change == "put":
            writer.put("objects", b"a", b"new")
        elif change == "delete":
            assert writer.delete("objects", b"a") and not writer.delete("objects", b"a")
        else:
            assert writer.put_new("objects", [(b"a", b"other"), (b"c", b"3")]) == 1
    assert in_pages(index)[1] == 0
    expected = {"put": {b"a": b"new", b"b": b"2"}, "delete": {b"b": b"2"}}
    assert everything(index) == expected.get(change, {b"a": b"1", b"b": b"2", b"c": b"3"})


def test_a_reader_keeps_its_moment_while_rows_move(index):
    put(index, {b"a": b"1"})
    with index.read() as first:
        assert first.get("objects", b"a") == b"1"
        with index.read() as later:  # has not looked yet
            put(index, {b"a": b"2", b"b": b"2"})
            assert [later.get("objects", key) for key in (b"a", b"b")] == [b"1", None]
        assert dict(first.scan("objects")) == {b"a": b"1"}
    assert everything(index) == {b"a": b"2", b"b": b"2"}


def test_a_transaction_that_has_ended_gives_no_recent_rows(index):
    put(index, {b"a": b"1"})
    with index.read() as reader:
        assert reader.get("objects", b"a") == b"1"
    with pytest.raises(StorageError, match="ended"):
        reader.get("objects", b"a")
    with index.write() as writer:
        writer.put("objects", b"b", b"2")
    with pytest.raises(StorageError, match="ended"):
        writer.get("objects", b"b")


def test_an_undone_transaction_leaves_nothing_to_one_of_the_same_number(index):
    with pytest.raises(KeyError), index.write() as writer:
        writer.put("objects", b"a", b"undone")
        assert dict(writer.scan("objects")) == {b"a": b"undone"}
        raise KeyError
    assert everything(index) == {}
    put(index, {b"a": b"done"})
    assert everything(index) == {b"a": b"done"}


KEYS = st.sampled_from([b"%02d" % n for n in range(30)])
STEPS = st.one_of(
    st.tuples(st.just("put"), KEYS, st.binary(max_size=60)),
    st.tuples(st.just("delete"), KEYS, st.none()),
    st.tuples(st.just("put_new"), st.sets(KEYS, max_size=4), st.binary(max_size=5)),
    st.tuples(st.just("scan"), st.none() | KEYS, st.booleans()),
)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.lists(STEPS, max_size=8), st.booleans()), max_size=12))
def test_the_index_gives_what_a_dict_gives(tmp_path_factory, transactions):
    with pytest.MonkeyPatch.context() as patch, Index.create(tmp_path_factory.mktemp("model") / "index") as index:
        patch.setattr(recent, "RUNS", 3)
        patch.setattr(recent, "RUN_BYTES", 150)
        patch.setattr(recent, "ROWS_BYTES", 500)
        model: dict[bytes, bytes] = {}
        for steps, kept in transactions:
            ours = dict(model)
            try:
                with index.write() as writer:
                    for step in steps:
                        _take(writer, ours, *step)
                        assert writer.count("objects") == len(ours)
                    if not kept:
                        raise KeyError
                model = ours
            except KeyError:
                pass
            assert everything(index) == model


def _take(writer, ours, what, key, value):
    if what == "put":
        writer.put("objects", key, value)
        ours[key] = value
    elif what == "delete":
        assert writer.delete("objects", key) == (ours.pop(key, None) is not None)
    elif what == "put_new":
        new = [(each, value) for each in sorted(key)]
        assert writer.put_new("objects", new) == sum(each not in ours for each in key)
        for each in key:
            ours.setdefault(each, value)
    else:
        found = list(writer.scan("objects", start=key, reverse=value))
        within = [k for k in sorted(ours, reverse=value) if key is None or (k <= key if value else k >= key)]
        assert found == [(k, ours[k]) for k in within]


# -- damage


def spoil(index: Index, key: bytes, stored: bytes | None) -> None:
    with index.write() as writer:
        if stored is None:
            writer._remove(RECENT, key)
        else:
            writer._set(RECENT, key, stored)


def test_a_rotten_run_is_damage_whatever_row_is_asked_for(index):
    put(index, {b"a": b"1"})
    with index.read() as reader:
        stored = reader._stored(RECENT, ONE)
    for at in range(len(stored)):
        spoil(index, ONE, stored[:at] + bytes([stored[at] ^ 4]) + stored[at + 1 :])
        with index.read() as reader, pytest.raises(Damaged, match="recent"):
            reader.get("inline", b"other")
    spoil(index, ONE, stored)
    assert everything(index) == {b"a": b"1"}


def test_a_run_that_is_hidden_shows(index):
    put(index, {b"a": b"1"})
    put(index, {b"b": b"2"})
    spoil(index, ONE, None)
    with index.read() as reader, pytest.raises(Damaged, match="run 1"):
        reader.get("objects", b"b")


def test_a_run_in_the_place_of_another_is_damage(index):
    put(index, {b"a": b"1"})
    with index.read() as reader:
        spoil(index, TWO, reader._stored(RECENT, ONE))
    with index.read() as reader, pytest.raises(Damaged):
        reader.get("objects", b"a")


def test_a_row_in_two_places_is_damage(index):
    run = write_run({"objects": {b"a": b"1"}, "bases": {}, "inline": {}})
    for number in (ONE, TWO):
        spoil(index, number, close_row(RECENT, number, run))
    with index.read() as reader, pytest.raises(Damaged, match="two runs"):
        reader.get("objects", b"a")
    spoil(index, TWO, None)
    with index.write() as writer:
        writer._set("objects", b"a", close_row("objects", b"a", b"1"))
    with index.read() as reader, pytest.raises(Damaged, match="order"):
        list(reader.scan("objects"))
    with pytest.raises(Damaged, match="twice"), index.write() as writer:
        writer.delete("objects", b"a")


@pytest.mark.parametrize(
    "inflated",
    [
        b"",
        bytes(11),
        bytes(13),
        b"\x01" + bytes(11),
        struct.pack("<IHI", 1, 1, 9) + b"k" + bytes(8),
        struct.pack("<IHIHI", 2, 1, 0, 1, 0) + b"kk" + bytes(8),
        b"\xff" * 12,
        bytes(MAX_RUN_BYTES + 1),
    ],
)
def test_a_run_that_holds_something_else_is_damage(inflated):
    with pytest.raises(Damaged, match="malformed"):
        read_run(ONE, close_row(RECENT, ONE, zlib.compress(inflated)))


def test_a_run_that_is_no_stream_or_goes_on_behind_it_is_damage():
    run = write_run({"objects": {b"a": b"1"}, "bases": {}, "inline": {}})
    assert read_run(ONE, close_row(RECENT, ONE, run))["objects"] == {b"a": b"1"}
    for wrong in (run + b"x", run[:-1], b"", b"x" + run):
        with pytest.raises(Damaged, match="malformed"):
            read_run(ONE, close_row(RECENT, ONE, wrong))


# -- an index of before there was this table


@pytest.fixture
def older(tmp_path):
    path = tmp_path / "older"
    with Index.create(path) as index, index.write() as writer:
        writer.put_new("objects", [(b"a", b"1"), (b"b", b"2")])
    with lmdb.open(str(path), subdir=True, max_dbs=20) as env:
        table = env.open_db(RECENT.encode(), create=False)
        with env.begin(write=True) as txn:
            txn.drop(table, delete=True)
    return path


def elsewhere(path: Path, script: str) -> None:
    """Run a script in a process of its own: in one process a writer would open the index for readers, too."""
    head = (
        "import sys; from pathlib import Path; from chainstore.storage.index import Index; path = Path(sys.argv[1])\n"
    )
    subprocess.run([sys.executable, "-c", head + script, str(path)], check=True)


ADD = """
with Index.open(path) as index, index.write() as writer:
    writer.put("objects", b"c", b"3")
"""


def test_an_older_index_is_read_as_it_is(older):
    with Index.open(older, readonly=True) as index:
        assert everything(index) == {b"a": b"1", b"b": b"2"}


def test_an_older_index_gets_the_table_from_who_writes(older):
    elsewhere(older, ADD)
    with Index.open(older, readonly=True) as index:
        assert in_pages(index) == (2, 1)
        assert everything(index) == {b"a": b"1", b"b": b"2", b"c": b"3"}


def test_a_reader_of_an_older_index_never_overlooks_what_came_since(older):
    with Index.open(older, readonly=True) as index:
        assert everything(index) == {b"a": b"1", b"b": b"2"}
        with index.read() as before:
            elsewhere(older, ADD)
            assert before.get("objects", b"c") is None  # of its own moment
        with index.read() as reader, pytest.raises(StorageError, match="since it was opened"):
            reader.get("objects", b"c")
