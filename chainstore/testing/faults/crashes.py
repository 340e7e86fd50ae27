"""Crashes: what a power cut can leave, after each of a sequence of operations."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from chainstore.testing.faults.disk import Disk
from chainstore.testing.faults.operations import Operation
from chainstore.testing.faults.trees import Tree


@dataclass(frozen=True, slots=True)
class Crash:
    """One state that a power cut can leave.

    Attributes:
        after: how many operations had happened.
        kind: "everything" (all of it durable), "only synced", "some" (chance decided for each page and name that was
            not synced) or "torn" (the last write stopped at the edge of a sector).
        tree: what is there then.
        disk: for "everything": the disk behind it, as a killed process leaves it while the power stays on; else one
            on which all of the tree is durable.
    """

    after: int
    kind: str
    tree: Tree
    disk: Disk


def crashes(start: Disk, operations: Sequence[Operation], random: Random, *, chances: int = 3) -> Iterator[Crash]:
    """Yield the states that a power cut can leave before the first operation and after each.

    Args:
        start: the disk before them; not changed.
        random: decides which pages and names survive, and where a write is torn.
        chances: how many "some" are tried at each place.

    Equal states may come many times; `Tree.mark` tells.
    """
    disk = start.copy()
    yield from _at(disk, 0, random, chances)
    for number, operation in enumerate(operations, start=1):
        before = disk.copy() if operation.name in ("pwrite", "append") else disk
        disk.apply(operation)
        yield from _at(disk, number, random, chances)
        if before is not disk:
            for tree in disk.torn(before, operation, random):
                yield Crash(number, "torn", tree, Disk.of(tree))


def _at(disk: Disk, number: int, random: Random, chances: int) -> Iterator[Crash]:
    yield Crash(number, "everything", disk.everything(), disk.copy())
    for kind, tree in (("only synced", disk.only_synced()), *(("some", disk.some(random)) for _ in range(chances))):
        yield Crash(number, kind, tree, Disk.of(tree))
