"""Several machines on one repository: each with a disk of its own for the index, one of them writing at a time."""

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from chainstore.errors import Damaged, IndexElsewhere, UnsuitablePlace
from chainstore.ids import ObjectId
from chainstore.model.change import Dead, Mark, PackGrown, Retired, SetConfig
from chainstore.model.frame import contents_record
from chainstore.observe import Event, Notice, silent
from chainstore.odb.growth import Salvage
from chainstore.odb.layout import Layout
from chainstore.odb.local import LocalDatabase
from chainstore.odb.opening import create_local, open_local
from chainstore.odb.rebuild import rebuild_index
from chainstore.odb.rebuild_report import RebuildReport
from chainstore.odb.rows import Placed
from chainstore.storage import fs, log, mounts
from chainstore.storage.index import Index
from chainstore.storage.pack import scan
from tests.odb.stores import MAIN, Store, commit, logical, put, surroundings, tip

BIG = bytes(range(256)) * 40


@dataclass
class Host:
    """One machine: its name, its local disk, and the shared repository."""

    store: Store
    name: str
    disk: Path
    told: list[Event] = field(default_factory=list)

    @property
    def layout(self) -> Layout:
        return Layout(self.store.root, None, (self.disk,))

    def create(self) -> LocalDatabase:
        self.layout.create()
        there = self.layout, self.store.format, self.store.sealer, 0, self._around()
        create_local(*there, head=MAIN, config={}).close()
        self.layout.write_format(self.store.format)
        return self.open()

    def open(self, *, readonly: bool = False, take_over: bool = False) -> LocalDatabase:
        there = self.layout, self.store.format, self.store.sealer, 0, self._around()
        return open_local(*there, readonly=readonly, take_over=take_over)

    def rebuild(self, *, take_over: bool = False) -> RebuildReport:
        there = self.layout, self.store.format, self.store.sealer, 0, self._around()
        return rebuild_index(*there, silent, take_over=take_over)

    def notices(self) -> list[str]:
        found = [event.code for event in self.told if isinstance(event, Notice)]
        self.told.clear()
        return found

    def indexes(self) -> list[Path]:
        return sorted(self.disk.rglob("data.mdb"))

    def _around(self):
        return replace(surroundings(), host=self.name, observer=self.told.append)


def what_matters(db: LocalDatabase) -> dict[str, object]:
    """Return what an index says, but for small records: whether it holds them too is its own affair."""
    return {**logical(db), "inline": None}


Net = Callable[..., tuple[Host, Host]]


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Net]:
    """Make a repository's place on a network disk of some type, and two hosts that have it mounted."""

    def make(kind: str = "nfs4", *options: str, encrypted: bool = True) -> tuple[Host, Host]:
        there = mounts.Mount(str(tmp_path / "net"), kind, frozenset(options))
        monkeypatch.setattr(fs, "parse_mounts", lambda text: [*mounts.parse_mounts(text), there])
        store = Store(tmp_path / "net" / "store", encrypted)
        return Host(store, "a", tmp_path / "disk-a"), Host(store, "b", tmp_path / "disk-b")

    yield make


# ---- taking over


@pytest.mark.parametrize("encrypted", [True, False])
def test_where_locks_are_shared_another_host_takes_over_by_itself(net: Net, encrypted: bool) -> None:
    a, b = net("nfs4", encrypted=encrypted)
    with closing(a.create()) as db:
        commit(db, b"1", BIG)
        before = what_matters(db)
    assert a.notices() == ["index-place"]
    with closing(b.open()) as db:
        assert what_matters(db) == before
        commit(db, b"2", BIG + b"2")
    assert b.notices() == ["index-place"]
    with closing(b.open()) as db:
        before = what_matters(db)
    assert b.notices() == []
    with closing(a.open()) as db:
        assert what_matters(db) == before
    assert len(a.indexes()) == 1  # the one from before was removed
    assert not list(a.store.root.rglob("*.mdb"))


@pytest.mark.parametrize(
    "mount", [("fuse.glusterfs",), ("nfs4", "nolock"), ("nfs", "local_lock=all"), ("lustre", "localflock"), ("beegfs",)]
)
def test_where_they_may_not_be_it_has_to_be_asked_for(net: Net, mount: tuple[str, ...]) -> None:
    a, b = net(*mount)
    with closing(a.create()) as db:
        commit(db, b"1")
    owner = a.layout.owner.read_bytes()
    for refused in (b.open, b.rebuild):
        with pytest.raises(IndexElsewhere, match="host a") as caught:
            refused()
        assert (caught.value.host, caught.value.since, caught.value.taken_over) == ("a", a.layout.owned_since(), False)
        assert "--take-over" in caught.value.hint and caught.value.exit_code == 11
    assert a.layout.owner.read_bytes() == owner
    with closing(a.open()) as db:
        commit(db, b"2")
    with closing(b.open(take_over=True)) as db:
        commit(db, b"3")
    with pytest.raises(IndexElsewhere, match="host b"):
        a.open()
    assert a.rebuild(take_over=True).problems == []
    with closing(a.open()) as db:
        commit(db, b"4")


def test_a_local_lock_for_posix_ranges_alone_does_no_harm(net: Net) -> None:
    a, b = net("nfs", "local_lock=posix")
    a.create().close()
    b.open().close()


def test_the_old_host_is_fenced_and_loses_nothing(net: Net) -> None:
    a, b = net("fuse.glusterfs")
    with closing(a.create()) as old:
        first = commit(old, b"1")
        with closing(b.open(take_over=True)) as new:
            second = commit(new, b"2")
            log_there = (a.layout.log / "00000001").read_bytes()
            with pytest.raises(IndexElsewhere, match="taken over by host b") as caught:
                commit(old, b"lost?")
            assert caught.value.taken_over
            with pytest.raises(IndexElsewhere):
                old.publish(None, [SetConfig("codec", "fast")])
            assert (a.layout.log / "00000001").read_bytes() == log_there
            assert tip(old) == first  # what it has it still reads
            assert bytes(old.read(first))
            assert tip(new) == second
            commit(new, b"3")


def test_a_fence_holds_while_both_race(net: Net) -> None:
    a, b = net("nfs4")
    a.create().close()
    acknowledged: list[ObjectId] = []
    refused = []
    began = threading.Barrier(2)

    def work(host: Host) -> None:
        began.wait()
        for number in range(8):
            try:
                with closing(host.open()) as db:
                    for each in range(3):
                        id = commit(db, f"{host.name}{number}{each}".encode(), ref=f"heads/{host.name}")
                        acknowledged.append(id)
            except IndexElsewhere as error:
                refused.append(error)

    threads = [threading.Thread(target=work, args=(host,)) for host in (a, b)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(acknowledged) + len(refused) >= 16
    with closing(a.open()) as db:
        assert all(db.has(id) for id in acknowledged)
        chains = {}
        for name in ("a", "b"):
            with db.view() as view:
                chains[name] = len(view.reflog(f"heads/{name}"))
        assert sum(chains.values()) == len(acknowledged)


def test_a_damaged_log_is_not_taken_over(net: Net) -> None:
    a, b = net("nfs4")
    with closing(a.create()) as db:
        commit(db, b"1")
        position = db.position()
        commit(db, b"2")
    path = a.layout.log / "00000001"
    raw = bytearray(path.read_bytes())
    raw[position.start + 70] ^= 1
    path.write_bytes(raw)
    owner = a.layout.owner.read_bytes()
    for readonly in (True, False):
        with pytest.raises(Damaged):
            b.open(readonly=readonly)
    assert a.layout.owner.read_bytes() == owner
    assert a.rebuild().log_healed  # by the index that the first host still has
    with closing(b.open()) as db:
        assert len(db.refs()) == 2


def test_a_torn_tail_is_cut_and_a_missing_pack_is_told(net: Net) -> None:
    a, b = net("nfs4")
    with closing(a.create()) as db:
        commit(db, b"1", BIG)
    with (a.layout.log / "00000001").open("ab") as file:
        file.write(b"\x89CSLOG\r\n torn")
    next(path for path in a.layout.packs.rglob("*") if path.is_file()).unlink()
    with closing(b.open()) as db:
        assert not list(db.scan())
    assert b"torn" not in (a.layout.log / "00000001").read_bytes()


def test_an_index_that_was_lost_from_its_place_is_still_damage(store: Store) -> None:
    store.create().close()
    shutil.rmtree(store.root / "index")
    for readonly in (True, False):
        with pytest.raises(Damaged, match=r"missing|No such file"):
            store.open(readonly=readonly)


def test_a_local_disk_that_was_wiped_is_a_change_of_hosts(net: Net) -> None:
    a, _ = net("nfs4")
    with closing(a.create()) as db:
        first = commit(db, b"1")
    shutil.rmtree(a.disk)
    with closing(a.open()) as db:
        assert tip(db) == first
        commit(db, b"2")


# ---- reading


def test_readers_elsewhere_have_an_index_of_their_own(net: Net) -> None:
    a, b = net("fuse.glusterfs")
    with closing(a.create()) as db:
        first = commit(db, b"1", BIG)
        owner = a.layout.owner.read_bytes()
        with closing(b.open(readonly=True)) as reader:
            assert reader.index.private
            assert b.notices() == ["index-place"]
            assert tip(reader) == first
            second = commit(db, b"2", BIG + b"2")
            assert tip(reader) == second  # it catches up at the next look
            assert bytes(reader.read(second))
            assert what_matters(reader) == what_matters(db)
        made = b.indexes()
        commit(db, b"3")
        with closing(b.open(readonly=True)) as reader:
            assert what_matters(reader) == what_matters(db)
        assert b.indexes() == made
        assert b.notices() == []
    assert a.layout.owner.read_bytes() == owner


def test_a_reader_whose_host_lost_the_right_to_write_goes_on(net: Net) -> None:
    a, b = net("nfs4")
    with closing(a.create()) as db:
        commit(db, b"1")
    with closing(a.open(readonly=True)) as reader:
        assert not reader.index.private
        with closing(b.open()) as db:
            second = commit(db, b"2")
            assert tip(reader) == second
            assert reader.index.private
            third = commit(db, b"3")
            assert tip(reader) == third


def test_a_private_index_follows_what_gc_does(net: Net) -> None:
    a, b = net("nfs4")
    with closing(a.create()) as db, closing(b.open(readonly=True)) as reader:
        kept, dead = put(db, BIG, BIG[::-1])
        assert reader.has(dead) or tip(reader) is None
        with db.view() as view:
            place, (line,) = view.place(dead), (line for _, line in view.packs())
        db.publish(None, [Dead(line.pack, ((place.offset, place.offset + place.length),)), Mark((kept,), "x")])
        with fs.open_file(db.packs.path(line.pack), write=True) as file:
            file.pwrite(place.offset, bytes(place.length))
        put(db, b"more", b"of it")
        assert what_matters(reader) == what_matters(db)
        assert not reader.has(dead)
        db.publish(None, [Dead(line.pack, ((0, 1 << 20),)), Retired(line.pack)])
        db.packs.path(line.pack).unlink()
        put(db, b"elsewhere")
        assert what_matters(reader) == what_matters(db)


def test_a_private_index_that_does_not_fit_is_made_anew(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = net("nfs4")
    db = a.create()
    commit(db, b"1")
    b.open(readonly=True).close()
    (made,) = b.indexes()

    def again(why: str) -> None:
        nonlocal made
        with closing(b.open(readonly=True)) as reader:
            assert what_matters(reader) == what_matters(db), why
        (now,) = b.indexes()
        assert now != made, why
        made = now

    raw = made.read_bytes()
    made.with_name("other").write_bytes(raw[: len(raw) // 2])
    made.with_name("other").replace(made)
    again("cut")
    made.unlink()
    again("gone")
    monkeypatch.setattr(log, "SEGMENT_BYTES", 100)
    for number in range(4):
        commit(db, b"%d" % number)
    assert (a.layout.log / "00000001").exists() is False
    again("the segment that it knew was dropped")
    # the last line was undone, and another took its number
    path = a.layout.log / fs.list_dir(a.layout.log)[-1]
    db.close()
    shutil.copytree(a.store.root, a.store.root.with_name("copy"))
    shutil.copytree(a.disk, a.disk.with_name("copy-disk"))
    with closing(a.open()) as db:
        commit(db, b"one")
        b.open(readonly=True).close()
    for there, copy in ((a.store.root, "copy"), (a.disk, "copy-disk")):
        shutil.rmtree(there)
        there.with_name(copy).rename(there)
    assert path.exists()
    db = a.open()
    commit(db, b"another")
    again("another line")
    db.close()


def test_a_catch_up_that_was_cut_off_is_done_again(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = net("nfs4")
    with closing(a.create()) as db:
        commit(db, b"1")
        with closing(b.open(readonly=True)) as reader:
            second = commit(db, b"2", BIG)

            def die(*_: object) -> None:
                raise KeyboardInterrupt

            with monkeypatch.context() as patch:
                patch.setattr("chainstore.odb.replay.put_items", die)
                with pytest.raises(KeyboardInterrupt):
                    tip(reader)
            assert tip(reader) == second
            assert what_matters(reader) == what_matters(db)


def test_without_any_local_disk_nothing_is_made(net: Net) -> None:
    a, b = net("nfs4")
    with pytest.raises(UnsuitablePlace, match="none was named"):
        create_local(Layout(a.store.root), a.store.format, a.store.sealer, 0, surroundings(), head=MAIN, config={})
    a.create().close()
    b.disk.write_text("not a directory")
    with pytest.raises(UnsuitablePlace, match="cannot be written"):
        b.open(readonly=True)


# ---- packs that list what they hold


@pytest.mark.parametrize("hurt", ["intact", "checksum", "gone"])
def test_a_full_pack_is_read_by_its_list_and_walked_where_that_is_damaged(
    store: Store, monkeypatch: pytest.MonkeyPatch, hurt: str
) -> None:
    monkeypatch.setattr("chainstore.storage.pack.PACK_BYTES", 60_000)
    monkeypatch.setattr("chainstore.storage.pack.CROWDED_BYTES", 5_000)
    with closing(store.create()) as db:
        for number in range(12):
            commit(db, BIG + b"%d" % number, b"small %d" % number, BIG * 2 + b"%d" % number)
        before = logical(db)
        closed = [line for line in before["packs"].values() if line.contents]
        assert len(closed) >= 3
        path = db.packs.path(closed[0].pack)
    walked: list[PackGrown] = []
    walk = Salvage.__call__

    def seen(self: Salvage, growth: PackGrown) -> Iterator[Placed]:
        walked.append(growth)
        return walk(self, growth)

    monkeypatch.setattr(Salvage, "__call__", seen)
    raw = bytearray(path.read_bytes())
    if hurt == "checksum":
        raw[closed[0].contents + 300] ^= 1
    elif hurt == "gone":
        del raw[closed[0].contents :]
    path.write_bytes(raw)
    report = store.rebuild()
    assert len(report.problems) == (hurt == "gone")
    assert (closed[0].pack in {growth.pack for growth in walked}) == (hurt != "intact")
    assert not {growth.pack for growth in walked} & {line.pack for line in closed[1:]}
    with closing(store.open()) as db:
        assert logical(db) == before


def test_a_list_that_names_what_cannot_be_is_not_believed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chainstore.storage.pack.PACK_BYTES", 30_000)
    monkeypatch.setattr("chainstore.storage.pack.CROWDED_BYTES", 5_000)
    with closing(store.create()) as db:
        put(db, BIG, BIG[::-1], BIG * 2)
        before = logical(db)
        line = next(line for line in before["packs"].values() if line.contents)
        path = db.packs.path(line.pack)
    with fs.open_file(path) as file:
        records = list(scan(file, 0, line.contents, "pack"))
    raw = path.read_bytes()
    far = [(offset + (1 << 30), header) for offset, header in records]
    path.write_bytes(raw[: line.contents] + b"".join(contents_record(far, store.format.repo_id)))
    store.rebuild()
    with closing(store.open()) as db:
        assert logical(db) == before


def test_an_index_is_walked_before_it_is_taken_from_another_place(net: Net) -> None:
    a, _ = net("nfs4")
    with closing(a.create()) as db:
        commit(db, b"1")
        folder = db.index_path
    shutil.copy(folder / "data.mdb", folder / "copy")
    (folder / "copy").replace(folder / "data.mdb")
    a.open().close()
    assert a.layout.read_owner().inode == fs.inode_of(folder / "data.mdb")[1]
    assert a.layout.read_owner().outside
    assert not Index.verify_file(folder)
