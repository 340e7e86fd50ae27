"""A process that is killed, or a disk that fails, at any single step of a change loses nothing and shows no half."""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chainstore.crypto.keys import KeyFile, generate_key_file
from chainstore.errors import ChainError
from chainstore.repository import Repository, init
from chainstore.repository import open as open_repository
from chainstore.storage import log
from tests.faults.children import run, succeed
from tests.faults.chronicle import Actor, Chronicle, Refs, observe, state
from tests.faults.failpoints import ERRORS, Failpoints, Fault, die

Script = Callable[[Repository, Chronicle], None]


def commits(repo: Repository, chronicle: Chronicle) -> None:
    actor = Actor(repo, chronicle, random.Random(1), 10)
    actor.commit("a")
    actor.number += 1
    actor.commit("a", piecewise=True)
    actor.number += 1
    actor.commit("new")


def refs(repo: Repository, chronicle: Chronicle) -> None:
    with chronicle.change("branch", name="b", at="a"):
        repo.branch("b", "a")
    with chronicle.change("tag", name="t", at="a"):
        repo.tag("t", "a")
    with chronicle.change("reset", name="b"):
        repo.reset("b", "b~1")
    with chronicle.change("delete", name="b"):
        repo.delete_ref("b")
    with chronicle.change("switch"):
        repo.switch("a")
    with chronicle.change("detach"):
        repo.detach("a~1")


def upkeep(repo: Repository, chronicle: Chronicle) -> None:
    with chronicle.change("rebuild"):
        repo.rebuild_index()
    Actor(repo, chronicle, random.Random(1), 20).commit("a")
    with chronicle.change("key"):
        repo.add_key(_second_key(repo))


def _second_key(repo: Repository) -> KeyFile:
    path = repo.path.parent / "second-key"
    return KeyFile(path) if path.exists() else generate_key_file(path, random.Random(2).randbytes)


SCRIPTS: dict[str, Script] = {"commits": commits, "refs": refs, "upkeep": upkeep}


class Prepared:
    """A small repository to copy for every trial.

    Attributes:
        refs: what it holds.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.key = generate_key_file(folder / "key", random.Random(1).randbytes)
        chronicle = Chronicle(folder / "chronicle")
        with init(folder / "repo", key=self.key, threads=1) as repo:
            actor = Actor(repo, chronicle, random.Random(1), 1)
            for number in range(1, 4):
                actor.number = number
                actor.commit("a", piecewise=number == 2)
            repo.tag("first", "a~2")
            self.refs = observe(repo)

    def copy(self, folder: Path) -> Path:
        """Return a fresh copy of it in `folder`, which is emptied."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self._folder / "repo", folder / "repo", ignore=shutil.ignore_patterns("reserve"))
        return folder / "repo"


@pytest.fixture(scope="module")
def prepared(shared_ground: Path) -> Prepared:
    return Prepared(shared_ground)


@pytest.fixture(params=[False, True], ids=["one segment", "a segment a line"])
def segments(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param:
        monkeypatch.setattr(log, "SEGMENT_BYTES", 1)
    yield


def look(path: Path, key: KeyFile, chronicle: Chronicle, before: Refs) -> None:
    """Check what is left, read only and for writing, then go on."""
    with open_repository(path, key=key, readonly=True) as repo:
        seen = chronicle.check(repo, before)
    with open_repository(path, key=key) as repo:
        assert observe(repo) == seen
        after = go_on(repo, path)
        assert not repo.rebuild_index().problems
        after.check(repo, seen)
    if any(change["what"] == "key" for change in chronicle.read()[0]):
        open_repository(path, key=KeyFile(path.parent / "second-key")).close()


def go_on(repo: Repository, path: Path) -> Chronicle:
    after = Chronicle(path.parent / "after")
    Actor(repo, after, random.Random(1), 99).commit("a")
    return after


def steps_of(prepared: Prepared, script: Script, folder: Path, fault: Fault = die) -> list[str]:
    """Return the operations of a script that nothing goes wrong in."""
    path = prepared.copy(folder)

    def work() -> list[str]:
        with Failpoints(fault).installed() as points, open_repository(path, key=prepared.key, threads=1) as repo:
            script(repo, Chronicle(folder / "chronicle"))
        return points.passed

    steps: list[str] = succeed(work)
    return steps


@pytest.mark.usefixtures("segments")
@pytest.mark.parametrize("torn", [False, True], ids=["", "torn"])
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_kill_at_any_step_of_a_change_leaves_it_undone_or_done(
    prepared: Prepared, script: Script, torn: bool, ground: Path
) -> None:
    folder = ground / "trial"
    steps = steps_of(prepared, script, folder)
    killed = 0
    for number, step in enumerate(steps, start=1):
        if torn and not step.startswith(("pwrite", "append")):
            continue
        path = prepared.copy(folder)
        chronicle = Chronicle(folder / "chronicle")

        def work(path: Path = path, chronicle: Chronicle = chronicle, number: int = number) -> None:
            points = Failpoints(die, number, torn=torn)
            with points.installed(), open_repository(path, key=prepared.key, threads=1) as repo:
                script(repo, chronicle)

        ending = run(work)
        assert not ending.error, ending.error
        killed += ending.signal == 9
        try:
            look(path, prepared.key, chronicle, prepared.refs)
        except BaseException as error:
            error.add_note(f"killed at step {number} of {len(steps)}, {step}, in {path}")
            raise
    assert killed > 10


def test_scripts_pass_every_kind_of_step_that_changes_a_disk(prepared: Prepared, ground: Path) -> None:
    kinds = {
        step.rpartition(" ")[0] for script in SCRIPTS.values() for step in steps_of(prepared, script, ground / "trial")
    }
    assert kinds >= {
        *("create", "flock", "pwrite", "append", "truncate", "fdatasync", "sync_dir", "rename", "unlink", "mkdir"),
        *("before index commit", "after index commit"),
    }


def test_a_kill_at_any_step_of_making_a_repository_leaves_none_or_a_whole_one(ground: Path) -> None:
    key = generate_key_file(ground / "key", random.Random(1).randbytes)

    def make(path: Path, points: Failpoints) -> list[str]:
        with points.installed():
            init(path, key=key).close()
        return points.passed

    steps = succeed(lambda: make(ground / "whole", Failpoints()))
    for number, step in enumerate(steps, start=1):
        path = ground / f"{number}"
        ending = run(lambda: make(path, Failpoints(die, number)))  # noqa: B023
        assert ending.signal == 9, (step, ending.error)
        try:
            with open_repository(path, key=key, create=True) as repo:
                assert repo.verify("data").ok, repo.verify("data").damaged
                repo.commit(state(1), "1", branch="a")
            with open_repository(path, key=key) as repo:
                assert observe(repo) == Refs({"a": (1,)})
        except BaseException as error:
            error.add_note(f"killed at step {number} of {len(steps)}, {step}")
            raise


@pytest.mark.parametrize(
    ("error", "lasting"), [("EIO", False), ("ENOSPC", False), ("StorageError", True), ("StoreFull", True)]
)
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_an_error_at_any_step_of_a_change_undoes_it_and_the_next_change_works(
    prepared: Prepared, script: Script, error: str, lasting: bool, ground: Path
) -> None:
    folder = ground / "trial"
    for number, step in enumerate(steps_of(prepared, script, folder, ERRORS[error]), start=1):
        path = prepared.copy(folder)
        points = Failpoints(ERRORS[error], number, lasting)
        try:
            succeed(lambda: fail_and_go_on(path, prepared, script, points))  # noqa: B023
        except BaseException as failure:
            failure.add_note(f"{error} at step {number}, {step}, in {path}")
            raise


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_write_that_ends_half_way_undoes_the_change_and_the_next_one_works(
    prepared: Prepared, error: str, ground: Path
) -> None:
    folder = ground / "trial"
    for number, step in enumerate(steps_of(prepared, commits, folder, ERRORS[error]), start=1):
        if step.startswith(("pwrite", "append")):
            path = prepared.copy(folder)
            points = Failpoints(ERRORS[error], number, torn=True)
            try:
                succeed(lambda: fail_and_go_on(path, prepared, commits, points))  # noqa: B023
            except BaseException as failure:
                failure.add_note(f"{error} half way through step {number}, {step}, in {path}")
                raise


def fail_and_go_on(path: Path, prepared: Prepared, script: Script, points: Failpoints) -> None:
    """Run a script into an error; then check and go on with the same handle, and with another."""
    chronicle = Chronicle(path.parent / "chronicle")
    try:
        with points.installed():
            repo = open_repository(path, key=prepared.key, threads=1)
    except ChainError:
        repo = open_repository(path, key=prepared.key, threads=1)
    with repo:
        try:
            with points.installed():
                script(repo, chronicle)
        except ChainError as error:
            if "outcome is unknown" not in str(error):
                chronicle.deny()
        seen = chronicle.check(repo, prepared.refs)
        after = go_on(repo, path)
    with open_repository(path, key=prepared.key, threads=1) as repo:
        after.check(repo, seen)
