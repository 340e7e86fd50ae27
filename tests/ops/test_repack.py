"""Records coded anew: by gc, so that what only they build on can go; by repack, so that history becomes smaller."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chainstore as cs
from chainstore.errors import Locked, ReadOnly
from chainstore.ids import ObjectId
from chainstore.leases import collector_lock
from chainstore.observe import Event, Progress
from chainstore.odb.replay import extend_index
from chainstore.odb.view import View
from chainstore.ops.deltas import SEGMENT
from chainstore.repository import Repository
from chainstore.storage.index import Index
from tests.faults.chain_world import (
    Drift,
    Kept,
    begin_another_pack,
    check,
    check_rebuilt,
    chunk_of,
    grow,
    packed_bytes,
    places,
)

ROWS = 40  # 80 KB


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "repo"


@pytest.fixture(params=["auto", "none", "small"])
def history(path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Repository, Kept]]:
    """A repository with a history that was committed with one codec or another."""
    with cs.init(path, encrypt=request.param == "auto", codec=request.param) as repo:
        yield repo, commit_some(repo, 20)


def commit_some(repo: Repository, count: int, drift: Drift | None = None, **how: Any) -> Kept:
    drift, kept = drift or Drift(ROWS), {}
    for number in range(count):
        commit = repo.commit({"weight": drift.weight, "step": number}, step=number, **how)
        kept[str(commit.id)] = drift.weight.tobytes()
        drift.step()
    return kept


def depths(repo: Repository, kept: Kept) -> list[int]:
    return [place.depth for place in places(repo, [chunk_of(repo, commit) for commit in kept])]


def lengths(repo: Repository) -> dict[ObjectId, int]:
    with repo._db.view() as view:
        return {id: place.length for id, place in view.objects()}


# -- gc


def test_what_is_kept_of_a_chain_becomes_differences_to_each_other(path: Path) -> None:
    kept = grow(path, 100, range(9, 100, 10), rows=ROWS)
    with cs.open(path) as repo:
        before, dry = packed_bytes(path), repo.gc(dry_run=True)
        assert dry.recoded_bytes == 0 and packed_bytes(path) == before
        report = repo.gc()
        assert report.recoded_bytes > 0 and not report.left
        assert before - packed_bytes(path) == report.freed_bytes > 0.85 * before
        assert not [why for why in report.kept if why.why == "base"]
        found = depths(repo, kept)
        assert found[0] == 0 and found.count(0) <= 2 and max(found) <= SEGMENT
        check(repo, kept)
        assert repo.gc().nothing_to_do
        commit_some(repo, 3)
        again = repo.gc()
        assert (again.recoded_bytes, again.objects, again.moved_bytes) == (0, 0, 0)
        check(repo, kept)
    check_rebuilt(path, kept)


@pytest.mark.parametrize("every", [2, 3, 7, 8, 9])
def test_chains_stay_within_the_rules_whatever_is_kept(path: Path, every: int) -> None:
    kept = grow(path, 70, range(69 % every, 70, every), rows=1)
    with cs.open(path) as repo:
        repo.gc()
        check(repo, kept)
        kept |= commit_some(repo, 20)
        repo.forget(commits=list(kept)[:-1:2])
        repo.gc()
        kept = dict([*kept.items()][1::2])
        check(repo, kept)
        repo.gc()
        check(repo, kept)
    check_rebuilt(path, kept)


def test_a_base_stays_while_coding_anew_does_not_pay_and_goes_with_what_builds_on_it(path: Path) -> None:
    drift = Drift(ROWS)
    with cs.init(path, encrypt=False, codec="small") as repo:
        repo.commit({"weight": drift.weight})
        base = chunk_of(repo, "HEAD")
        drift.step()
        for name in "abcd":  # each on its own is nearly as long as the base they share
            repo.branch(name, "main")
            repo.commit({"weight": drift.weight}, branch=name)
            drift.step()
        drift.weight = drift.weight.reshape(-1)
        repo.commit({"weight": drift.weight})
        repo.forget(commits=["main~1"])
        report = repo.gc()
        assert report.recoded_bytes == 0
        assert [why.objects for why in report.kept if why.why == "base"] == [1]
        assert all(places(repo, [base]))
        repo.forget(commits=[])
        for name in "bcd":
            repo.commit({"weight": drift.weight}, branch=name)
        repo.forget(commits=[f"{name}~1" for name in "bcd"])
        held = repo.checkout("a")["weight"]
        assert repo.gc().recoded_bytes > 0
        assert not any(places(repo, [base]))
        assert (repo.checkout("a")["weight"] == held).all()
        assert not repo.verify("data").damaged


def test_damage_keeps_its_line_as_it_is_and_the_rest_goes_on(path: Path) -> None:
    with cs.init(path, encrypt=False, codec="small") as repo:
        one, two = Drift(ROWS), Drift(ROWS, seed=1)
        commits = []
        for _ in range(6):
            commits.append(repo.commit({"one": one.weight, "two": two.weight}))
            one.step()
            two.step()
        entries = {entry.path: entry.extents[0].chunk for entry in repo[commits[2]].manifest.entries if entry.extents}
        (place,) = places(repo, [entries[("one",)]])
        with repo._db.view() as view:
            pack = repo._db.packs.path(view.pack(place.pack).pack)
        with pack.open("r+b") as file:
            file.seek(place.offset + place.length // 2)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 1]))
        repo.forget(commits=commits[:5])
        report = repo.gc()
        assert report.recoded_bytes > 0
        assert [entries[("one",)].short in text for text in report.left] == [True, False]  # and its pack stays
        gone = [entries[("two",)]]
        assert not any(places(repo, gone)) and all(places(repo, [entries[("one",)]]))
        with repo._db.view() as view:
            assert sum(place.n_bases > 0 for _, place in view.objects()) == 5


def test_what_builds_on_a_doomed_record_that_cannot_go_keeps_its_base(path: Path) -> None:
    kept = grow(path, 3, [2], rows=ROWS)
    begin_another_pack(path)
    drift = Drift(ROWS, seed=5)
    with cs.open(path) as repo:
        first = repo.commit({"weight": drift.weight}, branch="side")
        base = chunk_of(repo, "side")
    begin_another_pack(path)
    drift.step()
    with cs.open(path) as repo:
        repo.commit({"weight": drift.weight}, branch="side")
        second = drift.weight.copy()
        (above,) = places(repo, [chunk_of(repo, "side")])
        (below,) = places(repo, [base])
        assert above.pack != below.pack and above.depth == 1
        drift.step()
        repo.commit({"weight": drift.weight.reshape(-1)}, branch="side")
        repo.forget(commits=[first, "side~1"])
        with repo._db.view() as view:
            name = view.pack(above.pack).pack
        with repo._db.packs.take_over(name):  # as whoever writes to it does
            repo.gc()
            assert all(places(repo, [base]))
        again = repo.commit({"weight": second}, branch="side", codec="auto")  # found stored already
        assert again.stats.new_bytes == 0
        assert (repo.checkout("side")["weight"] == second).all()
        repo.gc()
        check(repo, kept)
        assert (repo.checkout("side")["weight"] == second).all()


# -- repack


def test_history_of_any_codec_becomes_as_small_as_if_it_had_been_committed_so(history: Any, path: Path) -> None:
    repo, kept = history
    before = lengths(repo)
    dry = repo.repack(dry_run=True)
    assert lengths(repo) == before
    disk = packed_bytes(path)
    report = repo.repack()
    after = lengths(repo)
    assert after.keys() == before.keys() and all(after[id] <= before[id] for id in before)
    assert (dry.chunks, dry.recoded, dry.after_bytes) == (report.chunks, report.recoded, report.after_bytes)
    assert report.commits == 20 and not report.left
    assert report.freed_bytes == disk - packed_bytes(path)
    assert depths(repo, kept)[:19] == [*range(8), *range(1, 9), *range(2, 5)]
    check(repo, kept)
    again = repo.repack()
    assert again.recoded == 0 and again.after_bytes == again.before_bytes == report.after_bytes
    with cs.init(path.parent / "other", encrypt=repo.encrypted, codec="small") as other:
        commit_some(other, 20)
        tip = len(next(iter(kept.values())))  # may stay whole: whoever commits meanwhile builds on it
        assert sum(after.values()) < 1.02 * sum(lengths(other).values()) + tip
    check_rebuilt(path, kept)


def test_what_others_commit_meanwhile_is_readable(path: Path) -> None:
    drift, kept = Drift(ROWS), {}
    with cs.init(path, encrypt=False, codec="auto") as repo:
        kept |= commit_some(repo, 12, drift)

        def commit(event: Event) -> None:
            if isinstance(event, Progress) and event.verb == "repack":
                kept.update(commit_some(repo, 1, drift, codec="small"))

        with cs.open(path, observer=commit) as other:
            assert other.repack().recoded > 0
        check(repo, kept)
    check_rebuilt(path, kept)


def test_what_something_builds_on_becomes_no_difference(path: Path) -> None:
    with cs.init(path, encrypt=False, codec="auto") as repo:
        drift = Drift(ROWS)
        kept = commit_some(repo, 3, drift)
        kept |= commit_some(repo, 3, drift, codec="small")
        assert depths(repo, kept) == [0, 0, 0, 1, 2, 3]
        repo.repack()
        assert depths(repo, kept) == [0, 1, 0, 1, 2, 3]
        check(repo, kept)
    check_rebuilt(path, kept)


def test_while_garbage_cannot_be_removed_nothing_becomes_a_difference(path: Path) -> None:
    with cs.init(path, encrypt=False, codec="none") as repo, ExitStack() as held:
        kept = commit_some(repo, 3)
        repo._db.suspect([chunk_of(repo, "main~1")])
        repo.commit({"again": repo.checkout("main~1")["weight"]})  # stored once more
        for name in repo._db.packs.names():
            held.enter_context(repo._db.packs.take_over(name))
        report = repo.repack()
        assert len(report.left) == 1 and "garbage" in report.left[0]
        assert depths(repo, kept) == [0, 0, 0]
        assert report.after_bytes < report.before_bytes
        check(repo, kept)
    check_rebuilt(path, kept)


def test_it_is_refused_where_nothing_may_be_written_and_beside_a_collection(path: Path) -> None:
    with cs.init(path, encrypt=False) as repo:
        repo.commit({"weight": np.zeros(10)})
        with collector_lock(repo._db.layout.leases, "somebody", "noon"), pytest.raises(Locked):
            repo.repack()
    with cs.open(path, readonly=True) as repo, pytest.raises(ReadOnly):
        repo.repack()


# -- other indexes


def test_an_index_that_lags_behind_comes_to_say_the_same(path: Path) -> None:
    """As a reader's own index does, in one step for all that happened since."""
    kept = grow(path, 30, range(4, 30, 5), rows=ROWS)
    with cs.open(path) as repo:
        shutil.copytree(repo._db.index_path, path.parent / "earlier")
        drift = Drift(ROWS, seed=9)
        kept |= commit_some(repo, 4, drift, codec="none")
        assert repo.gc().recoded_bytes > 0
        assert repo.repack().recoded > 0
        db = repo._db
        earlier = Index.open(path.parent / "earlier")
        try:
            extend_index(db.layout, db.sealer, earlier)
            with earlier.read() as rows, db.view() as view:
                assert said(View(rows, db.sealer)) == said(view)
        finally:
            earlier.close()
        check(repo, kept)


def said(view: View) -> dict[ObjectId, Any]:
    names = {number: line.pack for number, line in view.packs()}
    return {id: (names[place.pack], *place[1:], view.bases(id), view.inline(id)) for id, place in view.objects()}


def test_who_only_reads_sees_what_a_crash_left_of_it_in_the_log(path: Path) -> None:
    """The log says that records took the place of others, the index does not know it yet."""
    with cs.init(path, encrypt=False, codec="none") as repo:
        kept = commit_some(repo, 4)
        index = repo._db.index_path
    shutil.copytree(index, path.parent / "earlier")
    owner = (path / "index.owner").read_bytes()
    with cs.open(path) as repo:
        with repo._db.view() as view:
            line = view.position().seq
        assert repo.repack().recoded == 4
        found = depths(repo, kept)
        with repo._db.view() as view:
            assert view.position().seq > line
    assert found == [0, 1, 2, 0]
    shutil.rmtree(index)
    shutil.copytree(path.parent / "earlier", index)
    (path / "index.owner").write_bytes(owner)
    with cs.open(path, readonly=True) as repo:
        for commit, data in kept.items():
            assert repo.checkout(commit)["weight"].tobytes() == data
    with cs.open(path) as repo:  # redone, for good
        assert depths(repo, kept) == found
        check(repo, kept)
    check_rebuilt(path, kept)
