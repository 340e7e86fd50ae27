"""States whose chunks are differences: each record decoded once, in any budget; and damage told and healed."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from chainstore.codecs.base import DIFFERENCE
from chainstore.errors import IdMismatch
from chainstore.ids import ObjectId
from chainstore.model.manifest import Manifest
from chainstore.observe import silent
from chainstore.odb.local import LocalDatabase
from chainstore.ops.checkout import fill
from chainstore.ops.grouping import in_jobs
from chainstore.state.leaf import Destination
from tests.odb.chains import (
    Slot,
    counting,
    id_of,
    line,
    put_records,
    put_slots,
    slots,
    summed,
)
from tests.odb.stores import Store, commit, put
from tests.ops.damage import healed, look, opened, repair, spoil, told
from tests.ops.stores import leaf, store

SIZE = 20_000  # more than what shares chunks
COMMITS = 6
MIB = 1 << 20


@pytest.fixture
def decoded() -> Iterator[list[bytes]]:
    with counting() as every:
        yield every


def state_of(db: LocalDatabase, *state: Slot) -> Manifest:
    """Return the manifest of some slots, whose chunks are all stored."""
    names = ("weight", "exp_avg", "exp_avg_sq")
    leaves = [
        leaf((name, number), part) for number, slot in enumerate(state) for name, part in zip(names, slot, strict=True)
    ]
    manifest, stats = store(db, sorted(leaves, key=lambda each: each.path[0]))
    assert stats.stored_bytes == 0
    return manifest


def read_back(db: LocalDatabase, manifest: Manifest, *, threads: int, budget: int) -> tuple[int, list[bytes]]:
    buffers = [bytearray(entry.nbytes) for entry in manifest.entries]
    pairs = zip(manifest.entries, buffers, strict=True)
    destinations = [Destination(entry, memoryview(buffer), False) for entry, buffer in pairs]
    read = fill(db, destinations, threads=threads, max_memory_bytes=budget, observer=silent)
    return read, [bytes(buffer) for buffer in buffers]


@pytest.mark.parametrize("budget", [1, 12 * MIB, 1 << 30], ids=["none", "little", "much"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_whole_state_decodes_every_record_once(decoded: list[bytes], tmp_path: Path, threads: int, budget: int):
    histories = [slots(seed, COMMITS, SIZE) for seed in range(5)]
    copy = Store(tmp_path / "store", encrypted=False)
    with closing(copy.create()) as db:
        put_slots(db, *histories)
        manifest = state_of(db, *(history[-1] for history in histories))
    with opened(copy) as (db,):
        decoded.clear()
        read, found = read_back(db, manifest, threads=threads, budget=budget)
    assert sorted(found) == sorted(part for history in histories for part in history[-1])
    assert read == 5 * 3 * SIZE
    assert len(decoded) == len(set(decoded)) == 5 * 3 * (COMMITS - 1)


def test_idle_weights_are_decoded_with_the_moments_that_they_build_on(db, decoded: list[bytes]):
    """A weight without gradient builds on the moments before, as the moments now do; on none of the state itself."""
    history = slots(1, 2, SIZE)
    (w, m, v), (w_, m_, v_) = history
    older = slots(2, 1, SIZE)[0]
    put(db, *older)
    put_records(db, *(summed(db.sealer, part, [base], 1) for part, base in zip(history[0], older, strict=True)))
    records = [summed(db.sealer, m_, [m], 2), summed(db.sealer, v_, [v, m, m_], 3), summed(db.sealer, w_, [w, m, v], 2)]
    put_records(db, *records)
    manifest = state_of(db, history[1])
    decoded.clear()
    read_back(db, manifest, threads=2, budget=1 << 30)
    assert len(decoded) == len(set(decoded)) == 6


def test_what_many_build_on_does_not_make_one_job_of_them(db, decoded: list[bytes]):
    source = Random(3)
    zero, others = bytes(SIZE), [source.randbytes(SIZE) for _ in range(40)]
    put(db, zero)
    put_records(db, *(summed(db.sealer, other, [zero], 1) for other in others))
    ids = [id_of(db, other) for other in others]
    jobs = in_jobs(db.lay_out(ids), ids)
    assert sorted(id for job in jobs for id in job) == sorted(ids) and len(jobs) == 40
    few = ids[:8]
    assert len(in_jobs(db.lay_out(few), few)) == 1
    assert max(len(job) for job in in_jobs(db.lay_out(few), few, together=3)) == 3


def test_jobs_come_in_the_order_of_their_records(db, decoded: list[bytes]):
    histories = [slots(seed, 3, SIZE) for seed in range(4)]
    put_slots(db, *histories)
    wanted = [id_of(db, part) for history in histories[::-1] for part in history[-1]]
    nodes = db.lay_out(wanted)

    def where(id: ObjectId) -> tuple[int, int]:
        place = nodes[id].place
        assert place is not None
        return place.pack, place.offset

    jobs = in_jobs(nodes, wanted)
    assert [len(job) for job in jobs] == [3] * 4
    firsts = [where(job[0]) for job in jobs]
    assert firsts == sorted(firsts)
    assert all(list(map(where, job)) == sorted(map(where, job)) for job in jobs)
    missing = ObjectId(bytes(32))
    assert in_jobs(db.lay_out([missing]), [missing]) == [(missing,)]


def test_a_chunk_in_several_places_is_read_once(db, decoded: list[bytes]):
    (before, _, _), (after, _, _) = slots(1, 2, SIZE)
    put(db, before)
    put_records(db, summed(db.sealer, after, [before], 1))
    manifest, _ = store(db, [leaf(("a",), after), leaf(("b",), after), leaf(("c",), after[:100]), leaf(("d",), after)])
    decoded.clear()
    read, found = read_back(db, manifest, threads=2, budget=1 << 30)
    assert found == [after, after, after[:100], after]
    assert len(decoded) == 1 and read == SIZE + 100


def test_live_memory_that_holds_a_chunk_is_left_alone_and_the_rest_is_filled(db, decoded: list[bytes]):
    history = slots(1, 3, SIZE)
    put_slots(db, history)
    manifest = state_of(db, history[-1])
    buffers = [bytearray(entry.nbytes) for entry in manifest.entries]
    held = next(n for n, entry in enumerate(manifest.entries) if entry.path[0] == "exp_avg")
    buffers[held][:] = history[-1][1]
    pairs = zip(manifest.entries, buffers, strict=True)
    destinations = [Destination(entry, memoryview(buffer), True) for entry, buffer in pairs]
    read = fill(db, destinations, threads=1, max_memory_bytes=1 << 30, observer=silent)
    assert read == 2 * SIZE
    assert sorted(map(bytes, buffers)) == sorted(history[-1])


def test_damage_names_the_path_and_the_base(db, decoded: list[bytes]):
    histories = [slots(seed, COMMITS, SIZE) for seed in range(3)]
    put_slots(db, *histories)
    manifest = state_of(db, *(history[-1] for history in histories))
    base = id_of(db, histories[1][2][0])
    spoil(db, base)
    with pytest.raises(IdMismatch) as error:
        read_back(db, manifest, threads=2, budget=1 << 30)
    assert error.value.path == "weight/1"
    assert error.value.base == str(base) and base.short in str(error.value)


# -- verify and repair


@pytest.fixture
def original(tmp_path: Path) -> Store:
    """A line of seven versions, each a difference to the one before, each committed but the first."""
    original = Store(tmp_path / "original")
    with closing(original.create()) as db:
        for plain in line(db, DIFFERENCE, 6, 40 << 10)[1:]:
            commit(db, plain, b"next to it", message="differences")
    return original


def versions(store: Store) -> list[bytes]:
    """Return the same line as in `original`, made in a store of its own."""
    with closing(Store(store.root.with_name("again")).create()) as db:
        return line(db, DIFFERENCE, 6, 40 << 10)


def history_of(db: LocalDatabase) -> list[str]:
    """Return the commits, oldest first."""
    with db.view() as view:
        return [str(line.new) for line in reversed(view.reflog("heads/main"))]


@pytest.mark.parametrize("culprit", [0, 3, 6])
def test_every_commit_that_a_damaged_base_touches_is_told_and_healed(original: Store, tmp_path: Path, culprit: int):
    copy = original.copy(tmp_path / "copy")
    plains = versions(original)
    with opened(original) as (db,):
        ids = [id_of(db, plain) for plain in plains]
        commits = history_of(db)
        spoil(db, ids[culprit], at=300)
        found = {damage.id: damage for damage in told(look(db, threads=2))}
        hit = range(max(culprit, 1), 7)
        assert found.keys() == {str(ids[n]) for n in hit}
        for n in hit:
            assert found[str(ids[n])].commits == (commits[n - 1],)
            assert found[str(ids[n])].paths == ("k0",)
            assert (f"its base {ids[culprit].short} is damaged" in found[str(ids[n])].why) == (n != culprit)
    report = repair(original, copy)
    assert told(report) == [] and healed(report) == {str(ids[n]) for n in hit}
    with opened(original) as (db,):
        assert told(look(db)) == []
        assert [bytes(db.read(id)) for id in ids] == plains


def test_a_base_that_was_lost_is_told_by_level_links_and_comes_back(original: Store, tmp_path: Path):
    copy = original.copy(tmp_path / "copy")
    plains = versions(original)
    with opened(original) as (db,):
        ids = [id_of(db, plain) for plain in plains]
        with db._index.write() as rows:
            rows.delete("objects", ids[0])
        found = told(look(db, "links"))
        assert {damage.id for damage in found} == {str(id) for id in ids[1:]}
        assert all(ids[0].short in damage.why and "not in the store" in damage.why for damage in found)
    assert told(repair(original, copy, "links")) == []
    with opened(original) as (db,):
        assert [bytes(db.read(id)) for id in ids] == plains


def test_verify_decodes_a_line_once(db, decoded: list[bytes]):
    histories = [slots(seed, COMMITS, SIZE) for seed in range(3)]
    put_slots(db, *histories)
    for number in range(COMMITS):
        commit(db, *(part for history in histories for part in history[number]))
    decoded.clear()
    report = look(db, threads=2)
    assert told(report) == []
    assert len(decoded) == len(set(decoded)) == 3 * 3 * (COMMITS - 1)
    assert report.chunks_read == 3 * 3 * COMMITS and report.read_bytes == 3 * 3 * COMMITS * SIZE
