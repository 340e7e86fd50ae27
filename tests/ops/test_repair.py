"""Repair: what is damaged is taken from a copy, read again, and what stood in its place is kept aside."""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from chainstore.codecs import chain
from chainstore.errors import InvalidInput, ReadOnly, StorageError, WrongRepository
from chainstore.ids import Kind, ObjectId
from chainstore.model.change import SetRef
from chainstore.model.frame import FIXED_BYTES, split_record
from chainstore.observe import silent
from chainstore.odb.layout import Format
from chainstore.odb.local import LocalDatabase
from chainstore.ops.history import read_commit
from chainstore.ops.repair import verify_and_repair
from chainstore.ops.repair_files import heal_files
from chainstore.storage import fs, pack
from tests.odb.stores import MAIN, Store, commit, logical, put, tip
from tests.ops.damage import BIG, flip, healed, look, opened, packs_of, place_of, repair, spoil, told


def others(number: int) -> bytes:
    return Random(number).randbytes(len(BIG))


@pytest.fixture(params=[False, True], ids=["plain", "sealed"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Store:
    """Three commits that share a chunk, each with a chunk of its own and a small one."""
    made = Store(tmp_path / "store", encrypted=request.param)
    db = made.create()
    for number in range(3):
        commit(db, BIG, others(number), b"%d" % number)
    db.close()
    return made


@pytest.fixture
def copy(store: Store, tmp_path: Path) -> Store:
    return store.copy(tmp_path / "copy")


def whole(store: Store) -> None:
    """Everything reads in another process, and after a rebuild of the index."""
    with opened(store) as (db,):
        assert told(look(db)) == []
    store.rebuild()
    with opened(store) as (db,):
        assert told(look(db)) == []


def test_a_flipped_bit_is_healed_and_what_stood_there_is_kept(store: Store, copy: Store):
    with opened(store) as (db,):
        id = db.sealer.id(Kind.CHUNK, BIG)
        path, place = place_of(db, id)
    flip(path, place.offset + 1000)
    rotten = path.read_bytes()[place.offset : place.offset + place.length]
    report = repair(store, copy)
    assert told(report) == [] and healed(report) == {str(id)}
    (damage,) = report.healed
    assert damage.paths == ("k0",) and len(damage.commits) == 3
    assert report.quarantined == [f"quarantine/{path.name}-{place.offset}.record"]
    assert (store.root / report.quarantined[0]).read_bytes() == rotten
    assert (report.taken, report.taken_bytes) == (1, len(BIG))
    whole(store)


def test_a_lost_pack_is_healed_with_every_commit_page_and_chunk_in_it(store: Store, copy: Store):
    for path in packs_of(store):
        path.unlink()
    with opened(store) as (db,):
        lost = told(look(db))
        assert {damage.check for damage in lost} == {"packs", "commits", "pages", "chunks"}
    report = repair(store, copy)
    assert told(report) == [] and healed(report) == {damage.id for damage in lost}
    whole(store)


def test_rows_that_went_with_a_lost_pack_are_made_again(store: Store, copy: Store):
    (path,) = packs_of(store)
    with opened(store) as (db,), db._index.write() as rows:
        for id, _ in list(rows.scan("objects")):
            rows.delete("objects", id)
            rows.delete("inline", id)
    path.unlink()
    report = repair(store, copy)
    assert told(report) == [] and len(report.healed) > 10
    whole(store)


def test_a_pack_that_was_cut_off_is_emptied_and_retired(store: Store, copy: Store):
    (path,) = packs_of(store)
    os.truncate(path, path.stat().st_size // 2)
    report = repair(store, copy)
    assert told(report) == []
    assert report.quarantined == [f"quarantine/{path.name}.pack"]
    whole(store)


def test_a_pack_whose_headers_are_broken_is_set_aside_whole(store: Store, copy: Store):
    with opened(store) as (db,):
        path = spoil(db, db.sealer.id(Kind.CHUNK, others(1)), at=3)
    report = repair(store, copy)
    assert told(report) == [] and report.quarantined == [f"quarantine/{path.name}.pack"]
    assert (store.root / report.quarantined[0]).stat().st_size == path.stat().st_size
    whole(store)


def test_two_half_damaged_copies_give_one_whole(store: Store, copy: Store):
    with opened(store, copy) as (db, other):
        first, second = (db.sealer.id(Kind.CHUNK, others(number)) for number in (0, 1))
        spoil(db, first)
        spoil(other, second)
        page = read_commit(db, tip(db)).tree
        spoil(other, page)
    report = repair(store, copy)
    assert told(report) == [] and healed(report) == {str(first)}
    report = repair(copy, store)
    assert told(report) == [] and healed(report) == {str(second), str(page)}
    whole(store)
    whole(copy)


def test_what_is_damaged_in_both_stays_reported(store: Store, copy: Store):
    with opened(store, copy) as (db, other):
        both, one = (db.sealer.id(Kind.CHUNK, others(number)) for number in (0, 1))
        for each in (db, other):
            spoil(each, both)
        spoil(db, one)
    report = repair(store, copy)
    assert healed(report) == {str(one)} and [damage.id for damage in told(report)] == [str(both)]


def test_a_lost_pack_that_holds_what_is_nowhere_else_stays_what_it_is(store: Store, copy: Store):
    (path,) = packs_of(store)
    kept = path.read_bytes()
    path.unlink()
    with opened(copy) as (other,):
        spoil(other, other.sealer.id(Kind.CHUNK, others(2)))
    report = repair(store, copy)
    assert len(healed(report)) > 5 and {damage.check for damage in told(report)} == {"packs", "chunks"}
    path.write_bytes(kept)  # the disk is mounted again
    whole(store)


def test_nothing_is_changed_where_nothing_is_damaged(store: Store, copy: Store):
    before = {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file() and "index" not in str(path)}
    with opened(store, copy) as (db, other):
        was = logical(db)
        report = verify_and_repair(db, other, "data", threads=1, observer=silent)
        if store.encrypted:  # these stores have no keyring, which is damage nothing can heal
            assert {damage.check for damage in report.damaged} == {"files"}
        else:
            assert report.ok
        assert report.taken == 0 and report.quarantined == [] and logical(db) == was
    assert before == {path: path.read_bytes() for path in before}


def test_a_dry_run_says_what_would_be_taken_and_changes_nothing(store: Store, copy: Store):
    with opened(store) as (db,):
        id = db.sealer.id(Kind.CHUNK, BIG)
        spoil(db, id)
        was = logical(db)
    report = repair(store, copy, dry_run=True)
    assert [damage.id for damage in told(report)] == [str(id)] and report.healed == []
    assert (report.taken, report.taken_bytes, report.dry_run) == (1, len(BIG), True)
    with opened(store) as (db,):
        assert logical(db) == was and not list(store.layout.quarantine.iterdir())


def test_a_record_that_only_the_index_holds_well_is_healed_too(store: Store, copy: Store):
    with opened(store) as (db,):
        newest = tip(db)
        spoil(db, newest, at=FIXED_BYTES + 8)
        assert told(look(db, "links")) == []
        assert [damage.id for damage in told(look(db))] == [str(newest)]
    assert healed(repair(store, copy)) == {str(newest)}
    whole(store)


def test_the_commit_of_a_whole_chain_may_be_lost(store: Store, copy: Store):
    with opened(store) as (db,):
        middle = read_commit(db, tip(db)).parents[0]
        oldest = read_commit(db, middle).parents[0]
        with db._index.write() as rows:
            for id in (middle, oldest, read_commit(db, oldest).tree):
                rows.delete("objects", id)
                rows.delete("inline", id)
    report = repair(store, copy, "links")
    assert told(report) == [] and {str(middle), str(oldest)} <= healed(report)
    with opened(store) as (db,):
        assert read_commit(db, middle).parents == (oldest,)
        assert told(look(db)) == []


def test_a_copy_that_holds_it_under_another_branch_serves_as_well(store: Store, copy: Store):
    with opened(copy) as (other,):
        other.publish(None, [SetRef("heads/side", None, tip(other), "")])
    with opened(store) as (db,):
        id = db.sealer.id(Kind.CHUNK, BIG)
        spoil(db, id)
    assert healed(repair(store, copy)) == {str(id)}


def test_the_copy_of_another_repository_is_refused(store: Store, tmp_path: Path):
    class Other(Store):
        @property
        def format(self) -> Format:
            return Format(b"S" * 16, super().format.suite)

    stranger = Other(tmp_path / "stranger", encrypted=store.encrypted)
    stranger.create().close()
    with opened(store) as (db,):
        spoil(db, db.sealer.id(Kind.CHUNK, BIG))
        was = logical(db)
    with pytest.raises(WrongRepository, match=(b"S" * 16).hex()):
        repair(store, stranger)
    with opened(store) as (db,):
        assert logical(db) == was


def test_the_repository_itself_and_a_level_that_does_not_know_what_is_needed_are_refused(store: Store, copy: Store):
    with pytest.raises(InvalidInput, match="to be repaired"):
        repair(store, store)
    with pytest.raises(InvalidInput, match="quick"):
        repair(store, copy, "quick")


def test_what_was_opened_for_reading_is_not_repaired(store: Store, copy: Store):
    db, other = store.open(readonly=True), copy.open(readonly=True)
    try:
        with pytest.raises(ReadOnly):
            verify_and_repair(db, other, "data", threads=1, observer=silent)
        spoil(db, db.sealer.id(Kind.CHUNK, BIG))
        assert verify_and_repair(db, other, "data", threads=1, observer=silent, dry_run=True).taken == 1
    finally:
        db.close()
        other.close()


def test_a_format_file_is_made_from_its_twin_or_from_the_copy(store: Store, copy: Store):
    whole_bytes = (store.root / "format").read_bytes()
    for names in (["format"], ["format.bak"], ["format", "format.bak"]):
        for name in names:
            flip(store.root / name, 20)
        assert heal_files(store.layout, copy.layout, "a test") == names
        assert (store.root / "format").read_bytes() == (store.root / "format.bak").read_bytes() == whole_bytes
    assert heal_files(store.layout, copy.layout, "a test") == []


def test_a_format_file_is_never_taken_from_another_repository(store: Store, copy: Store):
    copy.layout.write_format(Format(b"S" * 16, store.format.suite))
    for name in ("format", "format.bak"):
        flip(store.root / name, 20)
    with pytest.raises(WrongRepository):
        heal_files(store.layout, copy.layout, "a test")


def test_more_than_one_line_of_the_log_is_taken_where_much_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("chainstore.ops.repair._OBJECTS_PER_LINE", 7)
    monkeypatch.setattr(pack, "PACK_BYTES", 60_000)
    store = Store(tmp_path / "store", encrypted=False)
    db = store.create()
    chunks = [others(number) for number in range(20)]
    commit(db, *chunks)
    put(db, b"garbage that nobody names")
    db.close()
    copy = store.copy(tmp_path / "copy")
    for path in packs_of(store)[::2]:
        path.unlink()
    with opened(store) as (db,):
        lines = db._index.position().seq
    report = repair(store, copy)
    assert told(report) == []
    with opened(store) as (db,):
        assert db._index.position().seq >= lines + 2
        for chunk in chunks:
            assert bytes(db.read(db.sealer.id(Kind.CHUNK, chunk))) == chunk
        assert tip(db, MAIN) is not None
    whole(store)


def test_a_repaired_record_is_as_compact_as_the_one_it_was_taken_from(store: Store, copy: Store):
    with opened(store, copy) as (db, other):
        id = db.sealer.id(Kind.CHUNK, BIG)
        spoil(db, id)
        path, place = place_of(other, id)
        header, _ = split_record(memoryview(path.read_bytes())[place.offset :], "copy")
    repair(store, copy)
    with opened(store) as (db,):
        path, place = place_of(db, id)
        again, _ = split_record(memoryview(path.read_bytes())[place.offset :], "store")
        assert again == header


class Xor:
    """The difference to one base of the same length."""

    tag, bases = 200, 1

    def encode(self, data, spec, bases, hint, out):
        out[: len(data)] = self.difference(data, bases[0])
        return len(data)

    def decode(self, payload, spec, bases, out):
        out[:] = self.difference(payload, bases[0])

    @staticmethod
    def difference(a, b) -> bytes:
        return bytes(x ^ y for x, y in zip(a, b, strict=True))


@pytest.fixture
def xor() -> Iterator[Xor]:
    codec = Xor()
    chain.register(codec.tag, lambda effort: codec, delta=True)
    yield codec
    chain.unregister(codec.tag)


def commit_against(db: LocalDatabase, xor: Xor, plain: bytes, base: bytes, depth: int) -> ObjectId:
    """Commit a chunk that is stored as the difference to another."""
    coded = xor.difference(plain, base)
    id, below = (db.sealer.id(Kind.CHUNK, data) for data in (plain, base))
    room = bytearray(db.sealer.sealed_bytes(len(coded)))
    tags = bytes([xor.tag, 0, 0, 0])
    header, payload = db.sealer.seal(Kind.CHUNK, id, len(plain), tags, coded, room, depth=depth, bases=(below,))
    batch = db.batch("none")
    try:
        batch.append_record(header, bytes(payload))
        db.publish(batch, [])
    finally:
        db.retire_batch(batch)
    commit(db, plain, message="against a base")
    return id


def test_what_builds_on_a_damaged_base_is_stored_whole(store: Store, tmp_path: Path, xor: Xor):
    with opened(store) as (db,):
        second = commit_against(db, xor, others(8), others(0), 1)
        third = commit_against(db, xor, others(9), others(8), 2)
    copy = store.copy(tmp_path / "copy")
    with opened(store) as (db,):
        base = db.sealer.id(Kind.CHUNK, others(0))
        spoil(db, base)
    report = repair(store, copy)
    assert told(report) == [] and healed(report) == {str(base), str(second), str(third)}
    with opened(store) as (db,):
        assert [place_of(db, id)[1].depth for id in (base, second, third)] == [0, 0, 0]
    whole(store)


def test_a_damaged_difference_is_replaced_although_the_copy_has_more_depth(store: Store, tmp_path: Path, xor: Xor):
    with opened(store) as (db,):
        id = db.sealer.id(Kind.CHUNK, others(8))
    copy = store.copy(tmp_path / "copy")
    with opened(store, copy) as (db, other):
        commit(db, others(8))
        commit_against(other, xor, others(8), others(0), 1)
        spoil(db, id)
    report = repair(store, copy)
    assert told(report) == [] and healed(report) == {str(id)}
    whole(store)


def test_a_lost_base_that_no_commit_names_takes_what_builds_on_it_along(store: Store, tmp_path: Path, xor: Xor):
    with opened(store) as (db,):
        put(db, others(20))
        id = commit_against(db, xor, others(21), others(20), 1)
    copy = store.copy(tmp_path / "copy")
    for path in packs_of(store):
        path.unlink()
    report = repair(store, copy)
    assert told(report) == [] and str(id) in healed(report)
    whole(store)


@pytest.mark.parametrize("how", ["bit", "lost"])
def test_a_repair_that_fails_anywhere_does_no_harm_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
):
    seed = int.from_bytes(os.urandom(3))
    source = Random(seed)
    monkeypatch.setattr("chainstore.ops.repair._OBJECTS_PER_LINE", 4)
    original = Store(tmp_path / "original", encrypted=False)
    db = original.create()
    for number in range(3):
        commit(db, BIG, others(number), b"%d" % number)
    db.close()
    copy = original.copy(tmp_path / "copy")
    if how == "lost":
        packs_of(original)[0].unlink()
    else:
        with opened(original) as (db,):
            spoil(db, db.sealer.id(Kind.CHUNK, BIG), at=3)
            spoil(db, db.sealer.id(Kind.CHUNK, others(1)))
    with opened(original) as (db,):
        before = {damage.key for damage in look(db).damaged}
    trial, number = original.copy(tmp_path / "trial"), 0
    while True:
        number += source.randint(1, 6)
        left = number

        def fail(name: str, path: Path) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise OSError(5, "Input/output error")

        with opened(trial, copy) as (db, other), monkeypatch.context() as patch:
            patch.setattr(fs, "failpoint", fail)
            with suppress(StorageError, OSError):
                verify_and_repair(db, other, "data", threads=1, observer=silent)
        with opened(trial) as (db,):
            assert {damage.key for damage in look(db).damaged} <= before, (seed, number)
        report = repair(trial, copy)
        assert told(report) == [], (seed, number, report.damaged)
        whole(trial)
        if left > 0:
            break  # it went through without failing
        shutil.rmtree(trial.root)
        trial = original.copy(tmp_path / "trial")
    assert number > 10
