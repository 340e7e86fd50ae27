"""The overlay: lines that only the log has look as if they were in the index, and the index stays as it is."""

import threading
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstore.odb.overlay import _Layered
from tests.odb.stores import commit, tip

rows = st.dictionaries(st.binary(min_size=1, max_size=3), st.binary(max_size=3), max_size=8)
changes = st.dictionaries(st.binary(min_size=1, max_size=3), st.none() | st.binary(max_size=3), max_size=8)


class Table:
    """One table of an index, in memory."""

    def __init__(self, rows: dict[bytes, bytes]) -> None:
        self.rows = rows

    def get(self, table, key):
        return self.rows.get(key)

    def scan(self, table, prefix=b"", *, start=None, reverse=False):
        for key in sorted(self.rows, reverse=reverse):
            if key.startswith(prefix) and (start is None or (key <= start if reverse else key >= start)):
                yield key, self.rows[key]

    def count(self, table):
        return len(self.rows)


@settings(deadline=None, max_examples=200)
@given(rows, changes, st.binary(max_size=2), st.none() | st.binary(max_size=3), st.booleans())
def test_a_layered_table_is_the_table_with_the_changes_made(below, above, prefix, start, reverse):
    expected = Table({key: value for key, value in (below | above).items() if value is not None})
    kept = dict(below)
    layered = _Layered(Table(below), {})
    for key, value in above.items():
        if value is None:
            assert layered.delete("t", key) == (key in below)
        else:
            layered.put("t", key, value)
    scan = {"start": start, "reverse": reverse}
    assert list(layered.scan("t", prefix, **scan)) == list(expected.scan("t", prefix, **scan))
    assert layered.count("t") == expected.count("t")
    for key in [*below, *above, b"none"]:
        assert layered.get("t", key) == expected.get("t", key)
    assert below == kept


@pytest.mark.parametrize("threads", [4])
def test_readers_of_several_threads_may_drop_an_overlay_at_once(either_store, threads):
    with closing(either_store.create()) as db:
        commit(db, b"1")
        before = (db.index_path / "data.mdb").read_bytes()
        commit(db, b"2")
        path = db.index_path
    (path / "data.mdb").write_bytes(before)
    with closing(either_store.open(readonly=True)) as reader:
        expected, errors, stop = tip(reader), [], threading.Event()

        def look():
            try:
                while not stop.is_set():
                    assert tip(reader) is not None
            except BaseException as error:
                errors.append(error)

        crew = [threading.Thread(target=look) for _ in range(threads)]
        for thread in crew:
            thread.start()
        with closing(either_store.open()) as db:
            assert tip(db) == expected
            last = commit(db, b"3")
        stop.set()
        for thread in crew:
            thread.join()
        assert errors == []
        assert tip(reader) == last
