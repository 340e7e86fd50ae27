"""A process that dies, or meets an error, at any system call that changes a disk: also at those of LMDB's C code."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from chainstore.cli.exits import STORAGE
from chainstore.crypto.keys import generate_key_file
from chainstore.errors import SnapshotForgotten
from chainstore.ids import ObjectId
from chainstore.model.commit import Commit
from chainstore.repository import Repository, init
from chainstore.repository import open as open_repository
from tests.faults import strace_script
from tests.faults.children import succeed
from tests.faults.needs import needs_strace
from tests.faults.strace_script import BEFORE, FORGOTTEN, Diary, prepare, state

ROOT = Path(__file__).resolve().parents[2]
WRITES = ("write", "pwrite64", "writev", "pwritev", "pwritev2")
INTERRUPTIBLE = (*WRITES, "fdatasync", "fsync", "ftruncate", "fallocate")  # what a signal can cut short
CALLS = (*INTERRUPTIBLE, "msync", "rename", "renameat", "renameat2", "unlink", "unlinkat", "mkdir", "link")
EVERY = 5
SOME = 15  # trials of each error in a short run
NOTE_BYTES = 200  # of the text in a lease, for people
PATIENCE_SECONDS = 60.0

Moment = tuple[str, int]  # a system call, and at which of them


class Stage:
    """A small repository, to be copied for every trial."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.key = generate_key_file(folder / "key")
        with init(folder / "repo", key=self.key, threads=1) as repo:
            prepare(repo)

    def trial(self, ground: Path, *words: str) -> "Trial":
        """Let a process live in a copy of the repository, under strace with these options."""
        folder = ground / "trial"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self._folder / "repo", folder / "repo", ignore=shutil.ignore_patterns("reserve"))
        Diary(folder / "diary")
        # without --seccomp-bpf, with which strace 6.1 forgets to send signals, and says nothing
        trace = ["strace", "-f", "-o", folder / "trace", "-e", f"trace={','.join(CALLS)}", *words]
        script = [sys.executable, "-m", strace_script.__name__, folder / "repo", self.key.path, folder / "diary"]
        done = subprocess.run(
            [*trace, *script],
            cwd=ROOT,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        return Trial(self, folder, done.returncode, done.stderr)

    def moments(self, ground: Path) -> list[Moment]:
        """Return every call of a life that nothing happens to, in order."""
        trial = self.trial(ground)
        assert trial.code == 0, trial.stderr
        trial.check()
        counts: Counter[str] = Counter()
        found = []
        for call in re.findall(r"^\d+ +(\w+)\(", (trial.folder / "trace").read_text(), re.MULTILINE):
            counts[call] += 1
            found.append((call, counts[call]))
        return found


class Trial:
    """One life and its end.

    Attributes:
        code: exit code, negative: the signal that ended it.
    """

    def __init__(self, stage: Stage, folder: Path, code: int, stderr: str) -> None:
        self._stage, self.folder, self.code, self.stderr = stage, folder, code, stderr

    def check(self) -> None:
        """Check that what was acknowledged is there, then go on, and check again."""
        assert "Traceback" not in self.stderr, self.stderr
        done, begun = Diary(self.folder / "diary").read()

        def look() -> None:
            with self._open(readonly=True) as repo:
                seen = _look(repo, done, begun)
            with self._open() as repo:
                assert _look(repo, done, begun) == seen
                repo.gc()
                assert _look(repo, done, begun) == seen
                assert not repo.rebuild_index().problems
                assert _look(repo, done, begun) == seen
                commit = repo.commit(state(1000), "1000", branch="a")
                assert commit.parents[0] == seen[-1] and repo.checkout(commit) == state(1000)

        succeed(look)

    def fails_unseen(self) -> bool:
        """Whether the call that failed is one of those that may: a lease's note for people, or gc's note to itself.

        Also where none did: lives are alike, but for a call more or less.
        """
        lines = (self.folder / "trace").read_text().splitlines()
        at = next((number for number, line in enumerate(lines) if "(INJECTED)" in line), None)
        if at is None:
            return True
        return f"iov_len={NOTE_BYTES}" in lines[at] or any(
            "gc.clean" in line for line in lines[max(0, at - 2) : at + 2]
        )

    def _open(self, *, readonly: bool = False) -> Repository:
        return open_repository(self.folder / "repo", key=self._stage.key, readonly=readonly, threads=1)


def _look(repo: Repository, done: list[list[str]], begun: list[str] | None) -> list[ObjectId]:
    """Check a repository against what it acknowledged; return the chain of `a`, oldest first."""
    report = repo.verify("data")
    assert report.ok, report.damaged
    chain = list(repo.log("a"))[::-1]
    numbers = [int(commit.message) for commit in chain]
    told = [*range(1, BEFORE + 1), *(int(entry[1]) for entry in done if entry[0] == "commit")]
    perhaps = [*told, int(begun[1])] if begun is not None and begun[0] == "commit" else told
    assert numbers in (told, perhaps), f"{numbers} should be {told}, or {perhaps}"
    ids = {str(commit.id) for commit in chain}
    assert ids >= {entry[2] for entry in done if entry[0] == "commit"}
    branches, happened = set(repo.branches()), {entry[0] for entry in done}
    assert branches == {"a", "b"} or ("branch" not in happened and branches == {"a"})
    forgetting = "forget" in happened or (begun is not None and begun[0] == "forget")
    kept = {_is_kept(repo, commit) for commit in chain if commit.message in FORGOTTEN}
    assert kept == {"forget" not in happened} if not forgetting or "forget" in happened else len(kept) == 1
    for commit in chain:
        assert commit.message in FORGOTTEN or _is_kept(repo, commit)
    return [commit.id for commit in chain]


def _is_kept(repo: Repository, commit: Commit) -> bool:
    """Whether a snapshot is there, and then as it was; False where it was forgotten."""
    try:
        assert repo.checkout(commit) == state(int(commit.message))
    except SnapshotForgotten:
        return False
    return True


@pytest.fixture(scope="module")
def stage(shared_ground: Path) -> Iterator[Stage]:
    yield Stage(shared_ground)


def kill(stage: Stage, ground: Path, every: int) -> None:
    moments = stage.moments(ground)
    killed = 0
    for call, number in moments[::every]:
        trial = stage.trial(ground, "-e", f"inject={call}:signal=SIGKILL:when={number}")
        try:
            trial.check()
            assert trial.code in (0, -signal.SIGKILL), trial.stderr
        except AssertionError as error:
            error.add_note(f"killed at {call} number {number}: {_last_lines(trial)}")
            raise
        killed += trial.code < 0
    assert killed >= 0.9 * len(moments[::every])  # lives are alike, but for a call more or less


def fail(stage: Stage, ground: Path, error: str, trials: int) -> Counter[int]:
    calls = INTERRUPTIBLE if error == "EINTR" else CALLS
    moments = [moment for moment in stage.moments(ground) if moment[0] in calls]
    codes: Counter[int] = Counter()
    for call, number in moments[:: max(1, len(moments) // trials)]:
        trial = stage.trial(ground, "-e", f"inject={call}:error={error}:when={number}")
        try:
            trial.check()
            told = trial.code == STORAGE and (error != "EINTR" or _is_sync_of_lmdb(call, trial.stderr))
            assert trial.code == 0 or told, trial.stderr
            assert told or error == "EINTR" or trial.fails_unseen(), "nobody was told"
        except AssertionError as failure:
            failure.add_note(f"{error} at {call} number {number}: {trial.stderr}{_last_lines(trial)}")
            raise
        codes[trial.code] += 1
    return codes


def _is_sync_of_lmdb(call: str, stderr: str) -> bool:
    """Whether LMDB's fdatasync failed: it makes interrupted writes again, but not those."""
    return call == "fdatasync" and "cannot commit to the index" in stderr


def _last_lines(trial: Trial) -> str:
    return "".join((trial.folder / "trace").read_text().splitlines(keepends=True)[-5:])


@needs_strace
def test_a_kill_at_every_fifth_call_loses_nothing_that_was_acknowledged(stage: Stage, ground: Path) -> None:
    kill(stage, ground, EVERY)


@pytest.mark.long
@needs_strace
def test_a_kill_at_any_call_loses_nothing_that_was_acknowledged(stage: Stage, ground: Path) -> None:
    kill(stage, ground, 1)


@needs_strace
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_call_that_fails_is_told_and_loses_nothing(stage: Stage, ground: Path, error: str) -> None:
    assert fail(stage, ground, error, SOME)[STORAGE] > 0  # and each that is not told is one that may go unseen


@needs_strace
def test_a_call_that_is_interrupted_is_made_again(stage: Stage, ground: Path) -> None:
    assert fail(stage, ground, "EINTR", SOME)[0] > SOME // 2


@pytest.mark.long
@needs_strace
@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EINTR"])
def test_any_call_may_fail(stage: Stage, ground: Path, error: str) -> None:
    fail(stage, ground, error, 1 << 30)
