"""Rot: bytes that change by themselves, and what is looked at afterwards."""

import mmap
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from chainstore.errors import ChainError, Damaged, Denied, Unsupported
from chainstore.ids import ObjectId
from chainstore.model.paths import parse_path
from chainstore.ops.verify import VerifyReport
from chainstore.refs import short_name
from chainstore.repository import rebuild
from tests.faults.children import Ending, run, succeed
from tests.faults.chronicle import same
from tests.faults.seeds import base_seed, replayable
from tests.faults.specimen import Part, Specimen

TOLD = (Damaged, Denied, Unsupported)  # what may be said of a damaged file
STILL_THERE = "the index still holds it whole"
BATCH = 50  # trials of one child: to fork takes longer than a trial


Note = Callable[[str], None]
T = TypeVar("T")


def trials(ground: Path, count: int, trial: Callable[[int, random.Random, Note], T]) -> list[T]:
    """Make trials in children, many in each, and return what they returned.

    Args:
        trial: gets its number, its own source of chance, and what it tells its details to, should it fail or die.
    """
    seed = base_seed()
    (ground / "note").write_bytes(bytes(mmap.PAGESIZE))
    with open(ground / "note", "r+b") as file:
        memory = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    def note(text: str) -> None:
        memory[:] = text.encode()[: len(memory)].ljust(len(memory), b"\0")

    def some(numbers: range) -> list[T]:
        answers = []
        for number in numbers:
            note(f"trial {number}")
            source = random.Random(f"{seed} {number}")
            answers.append(trial(number, source, lambda text: note(f"trial {number}: {text}")))  # noqa: B023
        return answers

    answers: list[T] = []
    for start in range(0, count, BATCH):
        try:
            numbers = range(start, min(start + BATCH, count))
            answers += succeed(lambda: some(numbers), patience_seconds=300)  # noqa: B023
        except AssertionError:
            with replayable(seed, memory[:].rstrip(b"\0").decode(errors="replace")):
                raise
    return answers


def flip(file: Path, source: random.Random, offset: int | None = None) -> int:
    """Flip one bit and return where."""
    data = bytearray(file.read_bytes())
    offset = source.randrange(len(data)) if offset is None else offset
    data[offset] ^= 1 << source.randrange(8)
    file.write_bytes(data)
    return offset


@contextmanager
def flipped(file: Path, source: random.Random, offset: int) -> Iterator[None]:
    """Flip one bit of a byte inside the block."""
    with open(file, "r+b", buffering=0) as opened:
        before = os.pread(opened.fileno(), 1, offset)
        os.pwrite(opened.fileno(), bytes((before[0] ^ 1 << source.randrange(8),)), offset)
        yield
        os.pwrite(opened.fileno(), before, offset)


def named(report: VerifyReport) -> set[Part]:
    """Return what a verification says is hit by damaged chunks."""
    return {
        (commit, str(parse_path(path)[0]))
        for damage in report.damaged
        if damage.check == "chunks"
        for commit in damage.commits
        for path in damage.paths
    }


def look(specimen: Specimen, path: Path, *, readonly: bool, arrays: bool = True) -> str | set[Part]:
    """Open, read, and verify; return what cannot be read, or the name of the error that says why nothing can.

    Raises:
        AssertionError: something wrong was handed out.
    """
    try:
        with specimen.open(path, readonly=readonly) as repo:
            lost = specimen.look(repo, arrays=arrays)
            report = repo.verify("data" if arrays or lost else "links")
            assert not (lost and report.ok), f"verify found nothing where {lost} cannot be read"
            return lost
    except TOLD as error:
        return type(error).__name__


def heal(specimen: Specimen, path: Path, *, arrays: bool = True) -> set[Part]:
    """Rebuild the index and return what still cannot be read; a ref may only move off a commit that is not whole."""
    report = rebuild(path, key=specimen.key)
    assert not report.lost_lines
    with specimen.open(path) as repo:
        lost = specimen.look(
            repo, arrays=arrays, moved={short_name(ref): after for ref, (_, after) in report.moved.items()}
        )
    hit = {commit for commit, _ in lost}
    assert all(before in hit and after not in hit for before, after in report.moved.values()), report.moved
    return lost


def heal_all(specimen: Specimen, path: Path, *, arrays: bool = True) -> None:
    """Rebuild the index, after which nothing is damaged."""
    assert heal(specimen, path, arrays=arrays) == set()
    with specimen.open(path) as repo:
        report = repo.verify("links")
        assert report.ok, report.damaged


def go_on(specimen: Specimen, path: Path) -> None:
    """Read a state, commit it again, and find it whole: what was damaged is stored anew."""
    with specimen.open(path) as repo:
        id, state = list(specimen.states.items())[-1]
        with suppress(ChainError):
            repo.checkout(ObjectId.parse(id))
        commit = repo.commit(state, "again", branch="again")
        assert same(repo.checkout(commit), state)
        assert repo.resolve("again") == commit.id


def in_child(work: Callable[[], object]) -> Ending:
    ending = run(work)
    assert not ending.error, ending.error
    return ending
