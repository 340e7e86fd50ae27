"""gc through the face of a repository: the stored policy, loads under way, and a disk that stays small for ever."""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from chainstore import Retention
from chainstore.errors import Damaged, Locked, ReadOnly, SnapshotForgotten
from chainstore.leases import collector_lock
from chainstore.ops import gc as gc_module
from chainstore.repository import Repository, init
from chainstore.repository import open as open_repository
from tests.faults.grounds import fast_folder
from tests.ops.rubbish import disk_bytes

FLOATS = 25_000  # 100 kB


def state(number: int) -> dict[str, object]:
    return {"w": np.random.default_rng(number).standard_normal(FLOATS, dtype=np.float32), "step": number}


def fill(repo: Repository, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        repo.commit(state(number), str(number), step=number)


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Path]:
    with fast_folder(tmp_path) as folder:
        yield folder


@pytest.fixture
def repo(ground: Path) -> Iterator[Repository]:
    with init(ground / "repo", encrypt=False) as made:
        yield made


def test_it_applies_the_stored_policy_first_unless_told_not_to(repo):
    fill(repo, 6)
    assert repo.gc().forgotten == 0
    repo.set_retention(Retention(last=2))
    assert repo.gc(forget=False).objects == 0
    assert repo.gc(dry_run=True).forgotten == 4 and repo.marks() == {}
    report = repo.gc()
    assert (report.forgotten, report.swept) == (4, 4)
    assert len(repo.marks()) == 4 and all(mark.swept for mark in repo.marks().values())
    with pytest.raises(SnapshotForgotten, match="keep-last 2"):
        repo.checkout("main~3")
    assert repo.checkout("main~1")["step"] == 4
    assert repo.gc().nothing_to_do


def test_a_policy_of_5_over_1000_commits_with_gc_every_50_never_takes_more_than_60_snapshots(ground):
    """Counted in blocks of the file system, right before every gc: packs as snapshots; log and index by the commit,
    because commits themselves stay for ever, and the space kept for bad times apart.
    """
    with init(ground / "one", encrypt=False) as repo:
        fill(repo, 1)
        before = disk_bytes(repo.path / "packs")
        fill(repo, 1, 1)
        snapshot = disk_bytes(repo.path / "packs") - before
    with init(ground / "repo", encrypt=False) as repo:
        repo.set_retention(Retention(last=5))
        fixed = sum(disk_bytes(repo.path / name) for name in ("log", "index"))
        for number in range(1, 1001):
            fill(repo, 1, number)
            if number % 50 == 0:
                assert disk_bytes(repo.path / "packs") <= 60 * snapshot, number
                repo.gc()
                commits = 512 * number  # which stay
                assert disk_bytes(repo.path / "packs") <= 6 * snapshot + commits, number
        kept = [commit for commit in repo.log() if commit.id not in repo.marks()]
        assert [commit.step for commit in kept] == [1000, 999, 998, 997, 996]
        assert all(np.array_equal(repo.checkout(commit.id)["w"], state(commit.step)["w"]) for commit in kept)
        beside = sum(disk_bytes(repo.path / name) for name in ("log", "index")) - fixed
        assert beside <= 1000 * 4096
        assert sum(1 for _ in repo.log()) == 1000
        assert repo.verify("data").ok


def test_the_log_is_begun_anew_when_most_of_it_is_history(repo, monkeypatch):
    fill(repo, 5)
    for number in range(300):
        repo.tag(f"t{number}")
        repo.delete_ref(f"t{number}", kind="tag")
    monkeypatch.setattr(gc_module, "_LOG_BYTES", 1000)
    monkeypatch.setattr(gc_module, "REFLOG_US", -60_000_000)  # everything has expired already
    before = disk_bytes(repo.path / "log")
    first = repo.commit(state(1))
    repo.gc()
    assert disk_bytes(repo.path / "log") < before / 10
    assert repo.head is not None and repo.head.id == first.id
    assert repo.rebuild_index().problems == []
    assert repo.verify("data").ok
    assert repo.gc().nothing_to_do or repo.gc().nothing_to_do


def test_a_load_under_way_ends_right_whatever_gc_does_meanwhile(repo):
    fill(repo, 3)
    old = repo.resolve("main~1")
    inside, go_on = threading.Event(), threading.Event()
    found: list[object] = []

    def pause(event: object) -> None:
        if getattr(event, "verb", "") == "checkout" and not inside.is_set():
            inside.set()
            assert go_on.wait(30)

    def load() -> None:
        with open_repository(repo.path, observer=pause, threads=1) as other:
            found.append(other.checkout(old))

    thread = threading.Thread(target=load)
    thread.start()
    try:
        assert inside.wait(30)
        repo.forget(commits=[old])
        report = repo.gc()
        assert report.swept == 1 and "reader" in [kept.why for kept in report.kept]
        with pytest.raises(SnapshotForgotten):
            repo.checkout(old)  # that began after
    finally:
        go_on.set()
        thread.join()
    assert len(found) == 1 and np.array_equal(found[0]["w"], state(1)["w"])
    assert repo.gc().objects > 0  # nobody reads it any more


def test_a_commit_that_gc_overtakes_is_written_again_and_whole(repo):
    """A state that was forgotten is committed once more while gc takes its bytes."""
    fill(repo, 3)
    collected: list[int] = []

    def collect(event: object) -> None:
        if getattr(event, "verb", "") == "commit" and not collected:
            collected.append(1)  # its chunk was found in the store by now
            with open_repository(repo.path) as other:
                other.forget(commits=["main~1", "main~2"])
                collected.append(other.gc().objects)

    with open_repository(repo.path, observer=collect, threads=1) as writer:
        writer.commit(state(0), "again")
    assert collected[1] > 0
    assert np.array_equal(repo.checkout()["w"], state(0)["w"])
    assert repo.verify("data").ok


def test_who_may_not_and_what_stops_it_is_said(repo):
    fill(repo, 1)
    with open_repository(repo.path, readonly=True) as reader, pytest.raises(ReadOnly):
        reader.gc()
    with collector_lock(repo.path / "leases", "process 7", "noon"), pytest.raises(Locked) as error:
        repo.gc()
    assert "process 7, since noon" in str(error.value)
    tree = repo.get_commit("main").tree
    with repo._db._index.write() as rows:
        rows.delete("objects", tree)
        rows.delete("inline", tree)
    with pytest.raises(Damaged, match=repo.resolve("main").short):
        repo.gc()


def test_foreign_files_are_named_and_left_alone(repo):
    fill(repo, 2)
    ours = {path for path in repo.path.rglob("*") if path.is_file()}
    foreign = [
        "notes.txt",
        "packs/README",
        "packs/00/backup",
        f"packs/00/{'ab' * 16}",  # a name of a pack, in a folder where none of that name can lie
        "log/old",
    ]
    for name in foreign:
        path = repo.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    assert repo.gc().foreign == sorted(foreign)
    assert all((repo.path / name).read_text() == "mine" for name in foreign)
    assert {path for path in ours if path.exists()} == ours
    assert repo.gc().nothing_to_do


def test_what_the_dead_left_goes(repo):
    fill(repo, 2)
    (pack,) = (path for path in (repo.path / "packs").rglob("*") if path.is_file())
    size = pack.stat().st_size
    with open(pack, "ab") as file:
        file.write(b"never committed" * 1000)
    orphan = repo.path / "packs" / "ee" / ("ee" * 16)
    orphan.parent.mkdir()
    orphan.write_bytes(b"a pack of somebody who died" * 1000)
    drafts = [repo.path / ".keyring.77.7f.tmp", repo.path / "leases" / ".gc.clean.77.7f.tmp"]
    for draft in drafts:
        draft.write_text("half a file")
    report = repo.gc()
    assert pack.stat().st_size == size and not orphan.exists() and not any(draft.exists() for draft in drafts)
    assert report.packs_removed == 1 and report.freed_bytes >= 40_000
    assert repo.verify("data").ok


def test_a_writer_at_work_keeps_its_unpublished_pack(repo):
    fill(repo, 1)
    with open_repository(repo.path) as other, other.writer(message="slow") as writer:
        writer["w"] = state(7)["w"]
        repo.gc()
        writer["step"] = 7
    assert np.array_equal(repo.checkout()["w"], state(7)["w"])


def test_the_report_is_one_line_and_a_table(repo):
    fill(repo, 3)
    repo.forget(Retention(last=1))
    assert "to free" in repr(repo.gc(dry_run=True)) and "freed" in repr(report := repo.gc())
    assert "kept: branch" in report._repr_html_()
    assert repr(repo.gc()) == "<GcReport nothing to do>"
