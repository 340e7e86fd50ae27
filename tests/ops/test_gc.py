"""gc takes what nothing leads to, gives its bytes back, and leaves everything else as it is."""

import os
import threading
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from chainstore.errors import Locked, SnapshotForgotten
from chainstore.ids import Kind
from chainstore.leases import collector_lock, reader_lease
from chainstore.model.change import Mark, SetRef, Swept, Unmark
from chainstore.odb.conflicts import GoneMeanwhile
from chainstore.ops.history import read_commit
from chainstore.storage import log as log_module
from tests.faults.children import Child
from tests.odb.stores import MAIN, Store, commit, commit_in, logical, put, tip
from tests.ops.rubbish import (
    Clock,
    at_failpoint,
    blob,
    chunk_ids,
    disk_bytes,
    drop_ref,
    forget,
    gc,
    holding,
    line_of_commits,
    open_at,
    read_back,
)

SIDE = "heads/side"


@pytest.fixture
def store(tmp_path) -> Store:
    made = Store(tmp_path / "store", encrypted=False)
    made.create().close()
    return made


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def db(store, clock):
    with closing(open_at(store, clock)) as opened:
        yield opened


def packs_of(store: Store) -> list[Path]:
    return sorted(path for path in store.layout.packs.rglob("*") if path.is_file())


# -- what goes, and what stays


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "sealed"])
def test_forgotten_snapshots_give_their_bytes_back_and_nothing_kept_changes(tmp_path, encrypted):
    store = Store(tmp_path / "other", encrypted=encrypted)
    with closing(store.create()) as db:
        made = line_of_commits(db, 10)
        forget(db, made[:7])
        before = disk_bytes(store.layout.packs)
        report = gc(db)
        after = disk_bytes(store.layout.packs)
        assert before - after >= 7 * 196_000  # all but the blocks at the edges
        assert report.freed_bytes == before - after
        assert (report.swept, report.commits, report.objects) == (7, 0, 7 * 3)  # chunk, page and root of each
        shared = blob(-1)
        for number, id in enumerate(made[7:], start=7):
            assert shared in read_back(db, id) and len(read_back(db, id)) == 2, number
        for id in made[:7]:
            assert read_commit(db, id).id == id  # the chain stays
            with db.view() as view:
                assert view.mark(id).swept
        again = gc(db)
        assert again.nothing_to_do and disk_bytes(store.layout.packs) == after


def test_a_dry_run_says_what_a_run_then_does_and_changes_nothing(store, db):
    made = line_of_commits(db, 5)
    forget(db, made[:3])
    db.settle()
    files = {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file() and "lock" not in path.name}
    told = gc(db, dry_run=True)
    assert told.objects == 9 and told.useless_bytes > 3 * 200_000
    assert {path: path.read_bytes() for path in files} == files
    assert gc(db).objects == told.objects
    assert gc(db, dry_run=True).useless_bytes == 0


def test_a_pack_in_which_nothing_is_kept_is_unlinked_a_long_run_is_punched_scattered_survivors_move(store, db):
    with ExitStack() as stack:
        batches = [db.batch("none") for _ in range(3)]
        for batch in batches:
            stack.callback(db.retire_batch, batch)
        whole, runs, scattered = batches  # three packs, because each is held while the next is taken
        for number in range(4):
            whole.append(Kind.CHUNK, blob(number))
        kept = [blob(100), blob(101)]
        runs.append(Kind.CHUNK, kept[0])
        for number in range(10, 14):
            runs.append(Kind.CHUNK, blob(number))
        runs.append(Kind.CHUNK, kept[1])
        small = [blob(200 + number, 20_000) for number in range(20)]
        for chunk in small:
            scattered.append(Kind.CHUNK, chunk)
        names = [batch.packs[0].name for batch in batches]
        for batch in batches:
            db.publish(batch, [])
        id = commit(db, *kept, *small[::2])  # its names are in a fourth
    paths = [db.packs.path(name) for name in names]
    sizes = [path.stat().st_size for path in paths]
    report = gc(db)
    assert not paths[0].exists()
    assert paths[1].stat().st_size == sizes[1] and paths[1].stat().st_blocks * 512 < sizes[1] - 4 * 196_000
    assert not paths[2].exists()
    assert report.packs_removed == 2 and report.moved_bytes > 10 * 20_000
    assert read_back(db, id) == [*kept, *small[::2]]
    assert gc(db).nothing_to_do


def test_commits_of_a_deleted_branch_stay_14_days_and_go_then(store, db, clock):
    made = line_of_commits(db, 2)
    side = line_of_commits(db, 3, ref=SIDE)
    clock.pass_days(1)
    drop_ref(db, SIDE)
    clock.pass_days(13.9)
    report = gc(db)
    assert (report.objects, report.reflog_lines) == (0, 4)  # what the line that says `deleted` leads to
    assert len(read_back(db, side[0])) == 2
    clock.pass_days(0.2)
    report = gc(db)
    assert (report.commits, report.reflog_lines) == (3, 1)
    with db.view() as view:
        assert [view.place(id) for id in side] == [None] * 3
        assert view.ref(SIDE) is None and list(view.marks()) == []
        assert len(view.reflog(MAIN)) == 1  # the newest line of a ref that exists stays
    assert [len(read_back(db, id)) for id in made] == [2, 2]
    before = logical(db)
    db.close()
    assert store.rebuild().problems == []
    with closing(open_at(store, clock)) as again:
        assert logical(again) == before
        assert gc(again).objects == 0


def test_whatever_a_tag_or_a_detached_head_is_at_stays_though_a_branch_left_it(db, clock):
    tagged, headed, left = (line_of_commits(db, 1, ref=f"heads/{name}")[0] for name in ("a", "b", "c"))
    db.publish(None, [SetRef("tags/v1", None, tagged), SetRef("HEAD", MAIN, headed)])
    for name in ("a", "b", "c"):
        drop_ref(db, f"heads/{name}")
    clock.pass_days(15)
    assert gc(db).commits == 1
    assert [len(read_back(db, id)) for id in (tagged, headed)] == [2, 2]
    with db.view() as view:
        assert view.place(left) is None


def test_a_forgotten_commit_to_which_a_branch_came_back_keeps_its_snapshot(db):
    made = line_of_commits(db, 3)
    forget(db, made[:2])
    db.publish(None, [SetRef(SIDE, None, made[0])])
    assert gc(db).swept == 1
    assert len(read_back(db, made[0])) == 2


def test_a_commit_marked_though_a_ref_is_at_it_keeps_its_snapshot(db):
    """Publishing refuses that; a log that holds it all the same is no reason to delete what has a name."""
    made = line_of_commits(db, 2)
    with db.turn() as turn:
        turn.publish([Mark((made[1],), "forged")])
    assert gc(db).swept == 0
    assert len(read_back(db, made[1])) == 2


# -- while others are at work


def test_a_pack_that_somebody_writes_to_is_passed_over_and_taken_the_next_time(store, db, clock):
    put(db, blob(1), blob(2))
    with closing(open_at(store, clock)) as writer:
        batch = writer.batch("none")
        batch.append(Kind.CHUNK, blob(3))
        held = {writer.packs.path(pack.name) for pack in batch.packs}
        size = {path: path.stat().st_size for path in held}
        report = gc(db)
        assert [kept.why for kept in report.kept] == ["writer"] and report.freed_bytes == 0
        assert {path: path.stat().st_size for path in held} == size
        made = commit_in(writer, batch, blob(3))
        writer.retire_batch(batch)
        assert read_back(writer, made) == [blob(3)]
    report = gc(db)
    assert report.objects == 2 and report.freed_bytes > 390_000
    assert read_back(db, made) == [blob(3)]


@pytest.mark.parametrize("look", [0, 1], ids=["removing", "moving"])
def test_what_is_written_to_a_pack_between_gcs_look_and_its_lock_stays(store, db, clock, monkeypatch, look):
    with closing(open_at(store, clock)) as writer:
        batch = writer.batch("none")
        chunks = [blob(number, 20_000) for number in range(20)]
        for chunk in chunks:
            batch.append(Kind.CHUNK, chunk)
        path = writer.packs.path(batch.packs[0].name)
        writer.publish(batch, [])
        if look:
            other = writer.batch("none")  # in a pack of its own: the first one is held
            kept = commit_in(writer, other, *chunks[::2], ref=SIDE)
            writer.retire_batch(other)
        writer.retire_batch(batch)
        looks, made = [], []

        def is_that_look(name: str, at: Path) -> bool:
            looks.extend([at] * (name == "flock" and at == path))
            return len(looks) > look

        with at_failpoint(monkeypatch, is_that_look, lambda: made.append(commit(writer, blob(77)))):
            gc(db)
        with writer.view() as view:
            place = view.place(chunk_ids(db, 77)[0])
            assert writer.packs.path(view.pack(place.pack).pack) == path  # it was this pack
        for opened in (db, writer):
            assert read_back(opened, made[0]) == [blob(77)]
        if look:
            assert read_back(db, kept) == chunks[::2]
    gc(db)
    assert read_back(db, made[0]) == [blob(77)]
    assert gc(db).nothing_to_do


def test_what_became_reachable_in_a_segment_that_went_meanwhile_is_kept(store, db, clock, monkeypatch):
    """The log summed it up before gc read it."""
    made = line_of_commits(db, 2)
    put(db, blob(5), blob(6))
    forget(db, made[:1])
    saved = []

    def publish_and_roll(seconds: float) -> None:
        if not saved:
            with monkeypatch.context() as patch, closing(open_at(store, clock)) as writer:
                patch.setattr(log_module, "SEGMENT_BYTES", 0)
                saved.append(commit(writer, blob(5)))  # which the store holds already
                put(writer, b"more")
                put(writer, b"and more")

    gc(db, sleep=publish_and_roll)
    assert read_back(db, saved[0]) == [blob(5)]
    with db.view() as view:
        assert view.place(chunk_ids(db, 6)[0]) is None


def test_nothing_can_lead_to_a_commit_once_gc_has_begun_to_take_it(store, db, clock):
    """Also where nobody forgot it: its ancestors may be gone while it is still there itself."""
    commit(db, b"main")
    side = line_of_commits(db, 2, ref=SIDE)
    drop_ref(db, SIDE)
    clock.pass_days(15)
    with closing(open_at(store, clock)) as other:
        refused = []

        def lead_there(seconds: float) -> None:
            for id in side:
                with pytest.raises((SnapshotForgotten, GoneMeanwhile)) as error:
                    other.publish(None, [SetRef("heads/late", None, id)])
                refused.append(error.type)
                with pytest.raises((SnapshotForgotten, GoneMeanwhile)):
                    commit_in_branch(other, id)
                with pytest.raises((SnapshotForgotten, GoneMeanwhile)):
                    other.publish(None, [Unmark((id,))])

        assert gc(db, sleep=lead_there).commits == 2
        assert refused[0] is SnapshotForgotten  # right after the sweep
        for id in side:
            with pytest.raises(GoneMeanwhile):
                other.publish(None, [SetRef("heads/late", None, id)])


def commit_in_branch(db, parent) -> None:
    batch = db.batch("none")
    try:
        batch.append(Kind.CHUNK, b"child")
        db.publish(batch, [], parents=[parent])
    finally:
        db.retire_batch(batch)


def test_a_branch_that_came_to_a_doomed_commit_before_the_sweep_keeps_all_of_it(store, db, clock, monkeypatch):
    commit(db, b"main")
    side = line_of_commits(db, 3, ref=SIDE)
    drop_ref(db, SIDE)
    clock.pass_days(15)
    locks = []

    def is_sweep(name: str, path: Path) -> bool:
        locks.extend([path] * (name == "flock" and path.name == "publish"))
        return len(locks) == 4  # to settle, to look for leftovers, to drop the reflog; this is the sweep

    def lead_there() -> None:
        with closing(open_at(store, clock)) as other:
            other.publish(None, [SetRef("heads/late", None, side[1])])

    with at_failpoint(monkeypatch, is_sweep, lead_there):
        assert gc(db).commits == 3
    assert [len(read_back(db, id)) for id in side[:2]] == [2, 2]
    with db.view() as view:
        assert view.place(side[2]) is None and view.mark(side[1]) is None
    assert gc(db).objects == 0


def test_a_commit_that_relied_on_what_gc_took_meanwhile_is_refused_and_whole_when_it_is_written_again(db):
    batch = db.batch("none")
    batch.append(Kind.CHUNK, blob(2))
    put(db, blob(1))  # in another pack: that one is held
    assert batch.append(Kind.CHUNK, blob(1)).stored == 0
    assert gc(db).objects == 1
    with pytest.raises(GoneMeanwhile, match="1 objects"):
        commit_in(db, batch, blob(1), blob(2))
    db.retire_batch(batch)
    made = commit(db, blob(1), blob(2))
    assert read_back(db, made) == [blob(1), blob(2)]


def test_two_at_once_the_second_is_told_who_is_at_work_and_since_when(store, db, clock):
    with closing(open_at(store, clock)) as other:
        put(other, blob(1))
        told = []

        def come_too(seconds: float) -> None:
            with pytest.raises(Locked) as error:
                gc(other)
            told.append(str(error.value))

        gc(db, sleep=come_too)
        assert "test on host, since noon" in told[0]
        assert gc(other).nothing_to_do


def test_a_gc_that_died_is_in_nobodys_way(store, db):
    def die() -> None:
        with collector_lock(store.layout.leases, "the dead", "long ago"):
            os._exit(9)

    put(db, blob(1))
    Child(die).join_dead()
    assert gc(db).objects == 1


# -- readers


def test_a_load_that_began_before_the_sweep_ends_right_and_one_that_begins_after_is_told(store, db, clock):
    made = line_of_commits(db, 3)
    commits = [read_commit(db, id) for id in made]
    expected = [read_back(db, id) for id in made]
    forget(db, made[:2])
    with closing(open_at(store, clock)) as reader:
        with holding(reader, commits[0]):
            report = gc(db)
            assert report.swept == 2
            assert [kept.objects for kept in report.kept if kept.why == "reader"] == [3]
            assert read_back(reader, made[0]) == expected[0]
            with pytest.raises(SnapshotForgotten), holding(reader, commits[1]):
                pass
            with pytest.raises(SnapshotForgotten), holding(reader, commits[0]):
                pass  # it is swept too, and goes as soon as the one who has it is done
        report = gc(db)
        assert not report.nothing_to_do and report.objects == 3
    assert gc(db).nothing_to_do


def test_a_load_that_begins_while_its_commit_is_swept_is_whole_though_the_commit_itself_goes(
    store, db, clock, monkeypatch
):
    commit(db, b"main")
    (side,) = line_of_commits(db, 1, ref=SIDE)
    made, expected = read_commit(db, side), read_back(db, side)
    drop_ref(db, SIDE)
    clock.pass_days(15)
    put(db, b"so that the reflog is written")
    assert gc(db, dry_run=True).commits == 1
    lines = []

    def is_sweep(name: str, path: Path) -> bool:
        lines.extend([path] * (name == "pwrite" and path.parent.name == "log"))
        return len(lines) == 2  # the first one drops the lines of reflogs

    with closing(open_at(store, clock)) as reader, ExitStack() as stack:
        with at_failpoint(monkeypatch, is_sweep, lambda: stack.enter_context(holding(reader, made))):
            assert gc(db).commits == 1
        with db.view() as view:
            assert view.place(side) is None
        read = [bytes(reader.read(id)) for id in chunk_ids(db, -1, sum(map(ord, SIDE)) * 1000)]
        assert sorted(read) == sorted(expected)
        assert len(reader.read(made.tree)) > 0
        assert gc(db).objects == 0  # and the next run, which knows nothing of the commit, leaves it whole too
        assert sorted(bytes(reader.read(id)) for id in chunk_ids(db, -1)) == [blob(-1)]
        stack.close()
        assert gc(db).objects == 4  # two chunks, page and root
        with pytest.raises(SnapshotForgotten, match="is gone"), holding(reader, made):
            pass


def test_a_reader_that_comes_too_late_does_not_stop_gc(store, db):
    made = line_of_commits(db, 3)
    trees = [read_commit(db, id).tree for id in made]
    forget(db, made[:2])
    gc(db)
    put(db, blob(9))
    with reader_lease(store.layout.leases, lambda: "ab", [(made[0], trees[0]), (made[1], trees[1])]):
        assert gc(db).objects == 1


def test_a_reader_that_died_holds_nothing(store, db):
    made = line_of_commits(db, 2)
    first = read_commit(db, made[0])
    forget(db, made[:1])

    def die() -> None:
        with closing(store.open()) as reader, holding(reader, first):
            os._exit(9)

    Child(die).join_dead()
    assert [path.suffix for path in store.layout.leases.iterdir()].count(".reader") == 1
    assert gc(db).objects == 3
    assert [path.suffix for path in store.layout.leases.iterdir()].count(".reader") == 0


def test_readers_and_gc_in_threads_never_see_half_a_snapshot(store, db, clock):
    """What is read is right, or forgotten; never damaged."""
    made = line_of_commits(db, 30, 30_000)
    commits = [read_commit(db, id) for id in made]
    expected = [read_back(db, id) for id in made]
    wrong: list[BaseException] = []
    refused: list[int] = []
    done = threading.Event()

    def read() -> None:
        try:
            with closing(open_at(store, Clock())) as reader:
                while not done.is_set():
                    for number, one in enumerate(commits):
                        try:
                            with holding(reader, one):
                                assert read_back(reader, one.id) == expected[number]
                        except SnapshotForgotten:
                            refused.append(number)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(0, 28, 2):
            forget(db, made[number : number + 2])
            gc(db)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not wrong and set(refused) == set(range(28))


def test_after_gc_a_swept_commit_cannot_come_back(db):
    made = line_of_commits(db, 2)
    forget(db, made[:1])
    gc(db)
    for changes in ([Unmark((made[0],))], [SetRef("tags/t", None, made[0])]):
        with pytest.raises(SnapshotForgotten):
            db.publish(None, changes)


def test_marks_that_a_killed_gc_made_final_are_taken_up(db):
    made = line_of_commits(db, 3)
    forget(db, made[:2])
    with db.turn() as turn:
        turn.publish([Swept((made[0],))])
    assert (report := gc(db)).swept == 1 and report.objects == 6
    assert tip(db) == made[2] and len(read_back(db, made[2])) == 2


def test_what_is_forgotten_while_gc_is_at_work_goes_the_next_time(store, db, clock):
    made = line_of_commits(db, 3)
    forget(db, made[:1])
    with closing(open_at(store, clock)) as other:
        late = []

        def forget_more(seconds: float) -> None:
            if not late:
                late.append(made[1])
                forget(other, late)

        assert gc(db, sleep=forget_more).objects == 3
    report = gc(db)
    assert not report.nothing_to_do and report.objects == 3
    assert gc(db).nothing_to_do
