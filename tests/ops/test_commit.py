"""Writing: leaves become chunks, few of them new when little changed."""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chainstore.errors import InvalidInput
from chainstore.ids import Kind
from chainstore.ops.commit import FileContent, file_leaves
from chainstore.ops.form import SHARED_LIMIT, SMALL_BYTES
from chainstore.state.leaf import Leaf
from tests.ops.stores import batch_of, leaf, load, store

MIB = 1 << 20


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.sampled_from([0, 1, 7, 64, 65, 5000, SMALL_BYTES, SMALL_BYTES + 1, 300_000]), max_size=12))
@pytest.mark.parametrize("threads", [1, 3])
def test_leaves_of_any_size_come_back(db, threads, sizes):
    leaves = [leaf((f"k{n}",), os.urandom(size), ("uint8", "float32", None)[n % 3]) for n, size in enumerate(sizes)]
    leaves.append(Leaf(("container",), ["d"], None, None))
    manifest, stats = store(db, leaves, threads=threads)
    assert [entry.path for entry in manifest.entries] == [each.path for each in leaves]
    assert load(db, manifest, threads=threads) == [each.source.data if each.source else b"" for each in leaves]
    assert stats.raw_bytes == sum(sizes)


def test_small_leaves_share_chunks_and_large_ones_have_their_own(db):
    leaves = [leaf((f"small{n}",), os.urandom(4)) for n in range(1000)] + [leaf(("large",), os.urandom(3 * MIB + 5))]
    manifest, _ = store(db, leaves)
    assert len({extent.chunk for entry in manifest.entries[:-1] for extent in entry.extents}) < 30
    assert [extent.length for extent in manifest.entries[-1].extents] == [MIB, MIB, MIB, 5]


def test_what_is_stored_already_is_not_stored_again(db):
    leaves = [leaf((f"k{n}",), os.urandom(100 + n)) for n in range(200)] + [leaf(("large",), os.urandom(2 * MIB))]
    first, stats = store(db, leaves)
    assert stats.new_bytes == stats.raw_bytes
    second, stats = store(db, leaves, threads=3)
    assert (stats.new_bytes, stats.stored_bytes) == (0, 0)
    assert second.entries == first.entries


def test_one_small_leaf_that_changes_or_joins_moves_few_others(db):
    leaves = [leaf((f"block{n}.weight",), os.urandom(500)) for n in range(2000)]
    store(db, leaves)
    changed = [*leaves[:700], leaf(leaves[700].path, os.urandom(500)), *leaves[701:]]
    _, stats = store(db, changed)
    assert stats.new_bytes <= SHARED_LIMIT
    inserted = [*leaves[:700], leaf(("new",), os.urandom(500)), *leaves[700:]]
    _, stats = store(db, inserted)
    assert stats.new_bytes <= 2 * SHARED_LIMIT


def test_counters_that_change_at_every_step_do_not_carry_weights_along(db):
    def state(step: int):
        for n in range(300):
            yield leaf((f"w{n}",), bytes([n % 256]) * 1000)
            yield leaf((f"step{n}",), step.to_bytes(4, "little"), "float32")

    store(db, list(state(1)))
    _, stats = store(db, list(state(2)))
    assert stats.new_bytes == 300 * 4


def test_progress_ends_at_all_of_it(db):
    seen = []
    store(db, [leaf(("large",), os.urandom(20 * MIB))], threads=2, observer=seen.append)
    assert [event.done for event in seen] == sorted(event.done for event in seen)
    assert seen[-1].done == seen[-1].total == 20 * MIB


def test_an_observer_that_raises_stops_the_commit(db):
    def observer(event):
        raise RuntimeError("seen enough")

    with pytest.raises(RuntimeError, match="seen enough"):
        store(db, [leaf(("large",), os.urandom(20 * MIB))], threads=2, observer=observer)
    assert list(db.scan()) == []


def test_a_batch_syncs_what_piles_up(db, monkeypatch):
    monkeypatch.setattr("chainstore.odb.batch.SYNC_BYTES", 1000)
    with batch_of(db) as batch:
        assert not batch.sync_some()
        batch.append(Kind.CHUNK, os.urandom(2000))
        assert batch.sync_some()
        assert not batch.sync_some()


# ---- files ----


def test_files_become_leaves_with_their_names_and_executable_bits(db, tmp_path):
    (tmp_path / "a.json").write_bytes(b"{}")
    (tmp_path / "run.sh").write_bytes(os.urandom(2 * MIB))
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "empty").write_bytes(b"")
    leaves = file_leaves({f"conf/{name}": tmp_path / name for name in ("a.json", "run.sh", "empty")})
    assert [each.path for each in leaves] == [("conf", "a.json"), ("conf", "run.sh"), ("conf", "empty")]
    assert [each.node[1] for each in leaves] == [False, True, False]
    manifest, _ = store(db, leaves)
    assert load(db, manifest) == [(tmp_path / name).read_bytes() for name in ("a.json", "run.sh", "empty")]


def test_files_that_were_read_before_become_the_same_leaves(db, tmp_path):
    for name, data, executable in (("a", b"{}", False), ("run.sh", os.urandom(100_000), True), ("empty", b"", False)):
        (tmp_path / name).write_bytes(data)
        (tmp_path / name).chmod(0o755 if executable else 0o644)
        read, _ = store(db, file_leaves({f"x/{name}": FileContent(data, executable)}))
        assert read == store(db, file_leaves({f"x/{name}": tmp_path / name}))[0]
    with pytest.raises(InvalidInput):
        file_leaves({"../x": FileContent(b"")})


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x", "a/../b", "a//b", "a/", ".", "a/."])
def test_a_name_that_leads_out_of_the_snapshot_is_refused(tmp_path, name):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidInput):
        file_leaves({name: tmp_path / "file"})


def test_what_is_no_file_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InvalidInput):
            file_leaves({"a": path})


def test_a_file_that_shrinks_while_it_is_read_is_refused(db, tmp_path):
    (tmp_path / "file").write_bytes(bytes(100))
    leaves = file_leaves({"a": tmp_path / "file"})
    (tmp_path / "file").write_bytes(bytes(10))
    with pytest.raises(InvalidInput, match="shorter"):
        store(db, leaves)
