"""Several processes and threads at work in one repository: no lost commit, no half, every conflict told."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chainstore.crypto.keys import KeyFile, generate_key_file
from chainstore.errors import RefConflict
from chainstore.repository import Repository, init
from chainstore.repository import open as open_repository
from tests.faults.children import Child, Ending
from tests.faults.chronicle import observe, same, state
from tests.faults.seeds import base_seed

COMMITS = 200  # of each process
THREADS = 4


class Arena:
    """A repository that several work in at once."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "repo"
        self.key: KeyFile = generate_key_file(folder / "key", random.Random(1).randbytes)
        init(self.path, key=self.key).close()

    def open(self, *, readonly: bool = False, threads: int = 1) -> Repository:
        return open_repository(self.path, key=self.key, readonly=readonly, threads=threads)

    def check(self, branches: dict[str, set[int]]) -> None:
        """Check that each branch is one chain of exactly these commits, and that every byte of them is there."""
        with self.open() as repo:
            found = observe(repo).branches
            assert {name: len(chain) for name, chain in found.items()} == {k: len(v) for k, v in branches.items()}
            assert {name: set(chain) for name, chain in found.items()} == branches
            for name in branches:
                for line in repo.reflog(name)[::-1]:
                    assert line.old is None or repo.get_commit(line.new).parents == (line.old,)  # type: ignore[arg-type]
            report = repo.verify("data")
            assert report.ok, report.damaged
            for commit in list(repo.log(all_refs=True))[::17]:
                assert same(repo.checkout(commit), state(int(commit.message)))
            assert not repo.rebuild_index().problems
            assert observe(repo).branches == found


@pytest.fixture
def arena(ground: Path) -> Arena:
    return Arena(ground)


def commit_all(repo: Repository, branch: str, numbers: range) -> int:
    """Commit every number, again where the branch moved meanwhile; return how many conflicts that were."""
    conflicts = 0
    for number in numbers:
        while True:
            try:
                repo.commit(state(number), str(number), branch=branch, step=number)
                break
            except RefConflict as conflict:
                assert conflict.ref == f"heads/{branch}" and conflict.expected != conflict.found
                conflicts += 1
    return conflicts


def finish(children: list[Child]) -> list[Ending]:
    """Wait for all, and let none have failed."""
    endings = [child.join(900) for child in children]
    for ending in endings:
        assert not ending.error, ending.error
        assert not ending.signal, f"killed by {ending.signal}"
    return endings


def committing(arena: Arena, branch: str, numbers: range) -> Callable[[], int]:
    def work() -> int:
        with arena.open() as repo:
            return commit_all(repo, branch, numbers)

    return work


def test_two_processes_on_two_branches_lose_nothing_and_never_conflict(arena: Arena) -> None:
    left, right = range(COMMITS), range(COMMITS, 2 * COMMITS)
    endings = finish([Child(committing(arena, "left", left)), Child(committing(arena, "right", right))])
    assert [ending.answer for ending in endings] == [0, 0]
    arena.check({"left": set(left), "right": set(right)})


def following(arena: Arena, stop: Path) -> Callable[[], int]:
    """Return what reads `main` until told to stop: whole states, each tip below the next one."""

    def work() -> int:
        turns, before = 0, None
        with arena.open(readonly=True) as repo:
            while not stop.exists():
                if not repo.branches():
                    continue
                tip = repo.snapshot("main")
                assert same(tip.load(), state(int(tip.commit.message)))
                if before is not None:
                    assert any(commit.id == before for commit in repo.log(tip.commit.id)), "a tip was lost"
                before = tip.commit.id
                turns += 1
        return turns

    return work


def compete(arena: Arena, processes: int, commits: int, readers: int = 0) -> None:
    stop = arena.path.parent / "stop"
    shares = [range(turn * commits, (turn + 1) * commits) for turn in range(processes)]
    beside = [Child(following(arena, stop)) for _ in range(readers)]
    try:
        endings = finish([Child(committing(arena, "main", share)) for share in shares])
    finally:
        stop.touch()
        followed = finish(beside)
    assert all(ending.answer > 5 for ending in followed)
    assert sum(ending.answer for ending in endings) > 0, "they never met"
    arena.check({"main": set(range(processes * commits))})


def test_two_processes_on_one_branch_make_one_chain_of_all_that_was_acknowledged(arena: Arena) -> None:
    compete(arena, 2, COMMITS)


def test_eight_processes_and_two_readers_on_one_branch_make_one_chain_of_800(arena: Arena) -> None:
    compete(arena, 8, 100, readers=2)


@pytest.mark.long
@pytest.mark.parametrize("commits", [200, 1000])
def test_eight_processes_and_two_readers_on_one_branch_make_a_longer_chain(arena: Arena, commits: int) -> None:
    compete(arena, 8, commits, readers=2)


def in_threads(*works: Callable[[], object]) -> None:
    """Do all of these at once; what one raises is raised here."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


@pytest.mark.parametrize("handles", [1, 2])
def test_threads_of_one_process_never_conflict_with_each_other(arena: Arena, handles: int) -> None:
    shares = [range(turn * 40, (turn + 1) * 40) for turn in range(THREADS)]
    repos = [arena.open(threads=2) for _ in range(handles)]
    works = [
        lambda repo=repos[turn % handles], share=share: commit_all(repo, "main", share)
        for turn, share in enumerate(shares)
    ]
    in_threads(*works)
    for repo in repos:
        repo.close()
    arena.check({"main": set(range(THREADS * 40))})


def test_a_branch_has_one_child_for_every_tip_that_two_expected(arena: Arena) -> None:
    def work(numbers: range) -> list[int]:
        done = []
        with arena.open() as repo:
            for number in numbers:
                tip = repo.resolve("main")
                try:
                    repo.commit(state(number), str(number), branch="main", expected_head=tip)
                    done.append(number)
                except RefConflict:
                    pass
        return done

    with arena.open() as repo:
        repo.commit(state(0), "0", branch="main")
    children = [Child(lambda turn=turn: work(range(turn, turn + 60))) for turn in (1000, 2000)]  # type: ignore[misc]
    acknowledged = {number for ending in finish(children) for number in ending.answer}
    arena.check({"main": {0} | acknowledged})


def test_readers_see_whole_states_that_only_go_forward_while_others_commit_and_rebuild(arena: Arena) -> None:
    seconds = 3.0
    stop = arena.path.parent / "stop"

    def until_stopped(work: Callable[[Repository], None], *, readonly: bool, reopen: bool) -> Callable[[], int]:
        def loop() -> int:
            turns = 0
            repo = arena.open(readonly=readonly)
            while not stop.exists():
                if reopen:
                    repo.close()
                    repo = arena.open(readonly=readonly)
                work(repo)
                turns += 1
            repo.close()
            return turns

        return loop

    seen = [0]

    def read(repo: Repository) -> None:
        found = repo.snapshot("main")
        number = int(found.commit.message)
        assert number >= seen[0], f"commit {number} was shown after {seen[0]}"
        seen[0] = number
        assert same(found.load(), state(number))

    def commit(repo: Repository) -> None:
        number = int(repo.get_commit("main").message) + 1
        repo.commit(state(number), str(number), branch="main")

    def rebuild(repo: Repository) -> None:
        assert not repo.rebuild_index().problems
        time.sleep(0.02)

    with arena.open() as repo:
        repo.commit(state(0), "0", branch="main")
    children = [
        Child(until_stopped(commit, readonly=False, reopen=False)),
        Child(until_stopped(rebuild, readonly=False, reopen=False)),
        Child(until_stopped(read, readonly=True, reopen=False)),
        Child(until_stopped(read, readonly=True, reopen=True)),
        Child(until_stopped(read, readonly=False, reopen=True)),
    ]
    time.sleep(seconds)
    stop.touch()
    turns = [ending.answer for ending in finish(children)]
    assert min(turns) > 5, turns
    arena.check({"main": set(range(turns[0] + 1))})


def test_a_reader_that_stays_open_sees_what_is_committed_after_a_rebuild_elsewhere(arena: Arena) -> None:
    with arena.open() as repo:
        repo.commit(state(1), "1", branch="main")
    with arena.open(readonly=True) as reader:
        assert reader.get_commit("main").message == "1"

        def work() -> None:
            with arena.open() as repo:
                repo.rebuild_index()
                repo.commit(state(2), "2", branch="main")

        finish([Child(work)])
        assert reader.get_commit("main").message == "2"
        assert same(reader.checkout("main"), state(2))


def test_threads_may_read_while_another_rebuilds_the_index(arena: Arena) -> None:
    with arena.open() as repo:
        for number in range(20):
            repo.commit(state(number), str(number), branch="main", tags=[f"t{number}"])
        done = threading.Event()

        def read() -> None:
            source = random.Random(base_seed())
            while not done.is_set():
                number = source.randrange(20)
                assert same(repo.checkout(f"t{number}"), state(number))

        def rebuild() -> None:
            try:
                for _ in range(15):
                    assert not repo.rebuild_index().problems
            finally:
                done.set()

        in_threads(read, read, read, rebuild)


def test_what_a_killed_process_held_is_free_at_once(arena: Arena) -> None:
    """Locks and packs end with the process that held them, also where it had forked a child that lives on."""
    ready = arena.path.parent / "ready"

    def work() -> None:
        with arena.open() as repo, repo.writer("main", "0") as writer:
            writer["state"] = state(0)
            heir = os.fork()
            if heir == 0:
                time.sleep(20)
                os._exit(0)
            ready.write_text(f"{heir}\n")
            time.sleep(20)

    child = Child(work)
    while not (ready.exists() and ready.read_text().endswith("\n")):
        time.sleep(0.001)
    child.kill()
    assert os.waitpid(child.pid, 0)[1] == 9
    started = time.monotonic()
    with arena.open() as repo:
        repo.commit(state(1), "1", branch="main")
        packs = [file for file in repo.path.glob("packs/*/*") if file.is_file()]
        assert len(packs) <= 2
    assert time.monotonic() - started < 5
    os.kill(int(ready.read_text()), signal.SIGKILL)
    arena.check({"main": {1}})
