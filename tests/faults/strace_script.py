"""A short life of a repository in a process of its own: `python -m tests.faults.strace_script REPOSITORY KEY DIARY`.

Ends like the command line: errors of ours as one line on stderr, and with their exit code.

Imports neither numpy nor torch: it is begun hundreds of times.
"""

import json
import mmap
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chainstore.crypto.keys import KeyFile
from chainstore.errors import ChainError
from chainstore.repository import Repository
from chainstore.repository import open as open_repository

BEFORE = 6  # commits that were there
FORGOTTEN = ("2", "3", "4")
_ROOM_BYTES = 1 << 16
_HEAD_BYTES = 8


class Diary:
    """What was begun and what was acknowledged, in mapped memory: it outlives a kill and makes no system call."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_ROOM_BYTES))
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _ROOM_BYTES)

    @contextmanager
    def entry(self, what: str, *facts: str) -> Iterator[list[str]]:
        """Say that something begins and that it was acknowledged; the block may add facts."""
        entry = [what, *facts]
        self._write(["begin", *entry])
        yield entry
        self._write(["done", *entry])

    def _write(self, line: list[str]) -> None:
        end = self._length()
        data = json.dumps(line).encode() + b"\n"
        self._memory[_HEAD_BYTES + end : _HEAD_BYTES + end + len(data)] = data
        self._memory[:_HEAD_BYTES] = (end + len(data)).to_bytes(_HEAD_BYTES, "little")

    def _length(self) -> int:
        return int.from_bytes(self._memory[:_HEAD_BYTES], "little")

    def read(self) -> tuple[list[list[str]], list[str] | None]:
        """Return what was acknowledged, and what was begun and was not."""
        lines = [json.loads(line) for line in self._memory[_HEAD_BYTES : _HEAD_BYTES + self._length()].splitlines()]
        done = [line[1:] for line in lines if line[0] == "done"]
        return done, lines[-1][1:] if lines and lines[-1][0] == "begin" else None


def state(number: int) -> dict[str, object]:
    """Return the state of a commit: 170 KB of plain bytes, 50 of them in all states."""
    source = random.Random(number)
    return {"blob": source.randbytes(120_000), "frozen": b"f" * 50_000, "note": f"commit {number}", "step": number}


def commit(repo: Repository, diary: Diary, number: int) -> None:
    with diary.entry("commit", str(number)) as entry:
        entry.append(str(repo.commit(state(number), str(number), branch="a").id))


def prepare(repo: Repository) -> None:
    for number in range(1, BEFORE + 1):
        repo.commit(state(number), str(number), branch="a", tags=["first"] * (number == 1))


def live(repo: Repository, diary: Diary) -> None:
    """Commit, commit, forget, gc, and commit once more."""
    commit(repo, diary, BEFORE + 1)
    with diary.entry("commit", str(BEFORE + 2)) as entry:
        with repo.writer("a", str(BEFORE + 2)) as writer:
            for key, value in state(BEFORE + 2).items():
                writer[key] = value
        entry.append(str(repo.resolve("a")))
    with diary.entry("branch"):
        repo.branch("b", "first")
    with diary.entry("forget"):
        repo.forget(commits=[each.id for each in repo.log("a") if each.message in FORGOTTEN])
    with diary.entry("gc"):
        repo.gc()
    commit(repo, diary, BEFORE + 3)


def main(repository: str, key_file: str, diary_file: str) -> int:
    diary = Diary(Path(diary_file))
    try:
        with open_repository(repository, key=KeyFile(key_file), threads=1) as repo:
            try:
                live(repo, diary)
            except ChainError:
                go_on(repo, diary)
                raise
    except ChainError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def go_on(repo: Repository, diary: Diary) -> None:
    """Commit with the handle that met an error, which may well go on failing."""
    try:
        commit(repo, diary, 99)
    except ChainError as error:
        print(f"then {type(error).__name__}: {error}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
