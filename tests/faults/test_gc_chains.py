"""Chains whose snapshots are mostly forgotten: gc gives back nearly all of it, whatever happens meanwhile."""

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chainstore.errors import ChainError
from chainstore.observe import Event, Progress
from chainstore.odb import conflicts
from chainstore.ops import gc as gc_module
from chainstore.ops.reach import Reach
from chainstore.policies import Retention
from chainstore.repository import open as open_repository
from tests.faults.chain_world import (
    Drift,
    Kept,
    begin_another_pack,
    check,
    check_index,
    check_rebuilt,
    chunk_of,
    grow,
    packed_bytes,
    places,
    some,
)
from tests.faults.children import Child, run, succeed
from tests.faults.failpoints import Failpoints, die
from tests.faults.seeds import base_seed, replayable

PATIENCE_SECONDS = 60.0
COMMITTERS = 3
_SPARE = 6  # steps that there may be fewer another time: a pack by chance has a folder already

Patch = pytest.MonkeyPatch


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not path.exists():
        assert time.monotonic() < deadline, f"nobody made {path.name}"
        time.sleep(0.002)


# -- beside others


def commit_drift(path: Path, branch: str, stop: Path) -> Kept:
    """Commit to a branch of our own, as differences, until `stop` exists; return what was acknowledged."""
    drift, kept = Drift(25, seed=len(branch)), {}
    with open_repository(path) as repo:
        while not stop.exists():
            commit = repo.commit({"weight": drift.weight}, branch=branch)
            kept[str(commit.id)] = drift.weight.tobytes()
            drift.step()
            time.sleep(0.005)
    return kept


def test_of_100_commits_every_tenth_is_kept_and_the_rest_comes_back_beside_three_committers(ground: Path) -> None:
    path, count = ground / "repo", 100
    kept = grow(path, count, range(9, count, 10), rows=100)
    with open_repository(path) as repo:
        history = [str(commit.id) for commit in repo.log()]
        with repo._db.view() as view:
            chunks = {id for id, place in view.objects() if place.plain_len == 100 * 2048}
            kept_chunks = {chunk_of(repo, commit) for commit in kept}
            found = [view.place(chunk) for chunk in chunks - kept_chunks]
        assert len(history) == len(chunks) == count
        dead_bytes = sum(place.length for place in found if place is not None)
    stop = ground / "stop"
    committers = [Child(lambda branch=f"{n * 'x'}side": commit_drift(path, branch, stop)) for n in range(COMMITTERS)]
    try:
        time.sleep(0.5)
        with open_repository(path) as repo:
            report = repo.gc()
    finally:
        stop.touch()
        endings = [committer.join() for committer in committers]
    assert not any(ending.error for ending in endings), endings
    print(f"{report.freed_bytes / dead_bytes:.1%} of {dead_bytes} dead bytes back")
    assert report.freed_bytes >= 0.8 * dead_bytes
    with open_repository(path) as repo:
        assert not any(places(repo, list(chunks - kept_chunks)))
        for ending in endings:
            assert ending.answer
            kept |= ending.answer
        check(repo, kept)
        repo.gc()
        assert repo.gc().nothing_to_do
        check(repo, kept)
    check_rebuilt(path, kept)


# -- a commit that was prepared before, and is published in the middle of it


def publish_meanwhile(ground: Path, moments: Callable[[int], list[int]]) -> None:
    """A commit takes as its base what gc is about to remove, and is published at some of the moments of a gc.

    Args:
        moments: of that many, those at which it is.
    """
    ground.mkdir(exist_ok=True)
    before = ground / "before"
    kept = grow(before, 24, [23])  # what comes next is a keyframe: a difference to one, that to another
    begin_another_pack(before)
    drift = Drift(8, seed=1)
    total = 0

    def count(event: Event) -> None:
        nonlocal total
        total += isinstance(event, Progress) and event.verb.startswith("gc")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc_module, "_ROWS", 1)
        patch.setattr(gc_module, "_BREATH_SECONDS", 0.0)
        shutil.copytree(before, ground / "counted")
        with open_repository(ground / "counted", observer=count) as repo:
            drift.weight = repo.checkout()["weight"].copy()
            repo.gc()
        drift.step()
        for moment in moments(total):
            path = ground / "repo"
            shutil.copytree(before, path)
            _publish_at(path, drift, moment)
            with open_repository(path) as repo:
                assert repo.checkout()["weight"].tobytes() == drift.weight.tobytes()
                check(repo, kept)
                repo.gc()
                check(repo, kept)
            check_rebuilt(path, kept)
            shutil.rmtree(path)


def _publish_at(path: Path, drift: Drift, moment: int) -> None:
    ready, go = path.parent / "ready", path.parent / "go"

    def commit() -> None:
        def wait(event: Event) -> None:
            if isinstance(event, Progress) and event.verb == "commit" and not ready.exists():
                ready.touch()
                wait_for(go)

        with open_repository(path, observer=wait, threads=1) as repo:
            repo.commit({"weight": drift.weight})

    committer, seen, endings = Child(commit), 0, []

    def tell(event: Event) -> None:
        nonlocal seen
        seen += isinstance(event, Progress) and event.verb.startswith("gc")
        if seen >= moment and not endings:
            endings.append(None)
            go.touch()
            endings[:] = [committer.join()]

    wait_for(ready)
    try:
        with open_repository(path, observer=tell) as repo:
            repo.gc()
    finally:
        go.touch()
        ending = endings[0] if endings and endings[0] is not None else committer.join()
    assert not ending.error, ending.error
    ready.unlink()
    go.unlink()


def test_a_commit_on_what_gc_takes_may_be_published_at_any_moment(ground: Path) -> None:
    seed = base_seed()
    with replayable(seed, ground):
        publish_meanwhile(ground, lambda count: some(random.Random(seed), count, 12))


@pytest.mark.long
def test_a_commit_on_what_gc_takes_may_be_published_at_each_moment(ground: Path) -> None:
    publish_meanwhile(ground, lambda count: list(range(1, count + 1)))


# -- the test of the tests


def bases_of_new_records_are_not_looked_for(patch: Patch) -> None:
    patch.setattr(conflicts, "_check_batch", lambda view, batch: None)


def gc_takes_the_bases_first(patch: Patch) -> None:
    def ascending(items: Any, *, key: Any = None, reverse: bool = False) -> Any:
        return sorted(items, key=key)

    patch.setattr(gc_module, "sorted", ascending, raising=False)


def gc_does_not_see_what_new_records_build_on(patch: Patch) -> None:
    follow = Reach.follow

    def blind(reach: Reach, changes: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Reach, "_add_bases", lambda reach, ids: None)
            follow(reach, changes)

    patch.setattr(Reach, "follow", blind)


@pytest.mark.parametrize(
    "mistake",
    [bases_of_new_records_are_not_looked_for, gc_takes_the_bases_first, gc_does_not_see_what_new_records_build_on],
    ids=lambda mistake: mistake.__name__,
)
def test_a_mistake_is_told(mistake: Callable[[Patch], None], ground: Path, monkeypatch: Patch) -> None:
    mistake(monkeypatch)
    with pytest.raises((AssertionError, ChainError)) as told:
        publish_meanwhile(ground, lambda count: list(range(1, count + 1)))
    print(str(told.value)[:2000])


# -- killed


def kill_and_go_on(ground: Path, work: str, most: int) -> None:
    """A collection, or a repack, is killed at some of its steps: nothing is lost, and the next goes on."""
    seed = base_seed()
    source = random.Random(seed)
    before = ground / "before"
    kept = grow(before, 20, range(1, 20, 3)) if work == "gc" else _grow_whole(before)
    with replayable(seed, ground):
        count = _count_steps(before, ground / "counted", work)
        for step in some(source, count, most):
            path = ground / "repo"
            shutil.copytree(before, path)

            def die_at(path: Path = path, step: int = step) -> None:
                with Failpoints(die, step).installed(), open_repository(path, threads=1) as repo:
                    getattr(repo, work)()

            ending = run(die_at)
            assert ending.signal or step > count - _SPARE, (step, ending)
            if source.random() < 0.5:
                check_rebuilt(path, kept)
            with open_repository(path, threads=1) as repo:
                check(repo, kept)
                getattr(repo, work)()
                check(repo, kept)
                repo.gc()
                assert repo.gc().nothing_to_do
            check_rebuilt(path, kept)
            shutil.rmtree(path)


def _grow_whole(path: Path) -> Kept:
    kept = grow(path, 1, [0])
    drift = Drift(8, seed=2)
    with open_repository(path) as repo:
        for _ in range(9):
            kept[str(repo.commit({"weight": drift.weight}, codec="fast").id)] = drift.weight.tobytes()
            drift.step()
    return kept


def _count_steps(before: Path, path: Path, work: str) -> int:
    shutil.copytree(before, path)

    def count() -> int:
        with Failpoints(die, 0).installed() as passed, open_repository(path, threads=1) as repo:
            getattr(repo, work)()
        return len(passed.passed)

    steps: int = succeed(count)
    return steps


@pytest.mark.parametrize("work", ["gc", "repack"])
def test_killed_at_some_steps_it_loses_nothing_and_goes_on(ground: Path, work: str) -> None:
    kill_and_go_on(ground, work, 12)


@pytest.mark.long
@pytest.mark.parametrize("work", ["gc", "repack"])
def test_killed_at_each_step_it_loses_nothing_and_goes_on(ground: Path, work: str) -> None:
    kill_and_go_on(ground, work, 1 << 30)


# -- a long run


def test_a_run_that_keeps_its_last_five_and_collects_now_and_then_takes_a_bounded_disk(ground: Path) -> None:
    path, every, rounds = ground / "repo", 50, 6
    grow(path, 1, [0], rows=100)
    drift, most, last = Drift(100, seed=3), [], {}
    with open_repository(path) as repo:
        repo.set_retention(Retention(last=5))
        for number in range(every * rounds):
            commit = repo.commit({"weight": drift.weight})
            last[str(commit.id)] = drift.weight.tobytes()
            drift.step()
            if number % every == every - 1:
                repo.gc()
                most.append(packed_bytes(path))
                last = dict(list(last.items())[-5:])
                check(repo, last)
        print(f"{[round(nbytes / drift.weight.nbytes, 2) for nbytes in most]} times an array")
        assert max(most) < 1.3 * min(most) < 5 * drift.weight.nbytes  # a commit stays behind of each snapshot
        check_index(repo)
    check_rebuilt(path, last)


def test_new_keys_after_it_seal_all_of_it_again(ground: Path) -> None:
    path = ground / "repo"
    kept = grow(path, 40, range(3, 40, 6), encrypt=True)
    with open_repository(path) as repo:
        assert repo.gc().recoded_bytes > 0
        depths = [place.depth for place in places(repo, [chunk_of(repo, commit) for commit in kept])]
        assert repo.rekey(reencrypt=True).complete
        assert [place.depth for place in places(repo, [chunk_of(repo, commit) for commit in kept])] == depths
        check(repo, kept)
    check_rebuilt(path, kept)
