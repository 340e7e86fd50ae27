"""Replicas: whether the ranks still have the same state, found out without sending it anywhere.

Rank 0 writes; what the others have is summed up where it lies, while rank 0 copies its own, and compared once rank 0's
is stored.  A replica that drifted away is found nowhere else: training goes on with it, and every snapshot shows one
rank only.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from chainstore.errors import ChainError
from chainstore.manager.checksums import checksum
from chainstore.manager.resuming import tell
from chainstore.model.paths import Path, format_path
from chainstore.observe import Observer
from chainstore.repository import flatten


@dataclass(frozen=True, slots=True)
class Report:
    """What a rank has of the state that all have.

    Attributes:
        paths: of its arrays; None where they are those of its last report.
        sums: CRC32C of each.
        error: why there are none.
    """

    paths: tuple[Path, ...] | None = None
    sums: tuple[int, ...] = ()
    error: str = ""


class Reporter:
    """Reports what this rank has.

    Args:
        frozen: tells paths of arrays that never change: they are left out.
    """

    def __init__(self, frozen: Callable[[Path], bool]) -> None:
        self._frozen = frozen
        self._paths: tuple[Path, ...] | None = None  # of the last report

    def report(self, state: Mapping[str, Any], but: set[Path]) -> Report:
        """Return what there is of arrays in a state.

        Args:
            but: paths of one or two keys to leave out, with what is below them.
        """
        try:
            leaves = [
                leaf
                for leaf in flatten({name: value for name, value in state.items() if (name,) not in but})
                if leaf.spec is not None and leaf.path[:2] not in but and not self._frozen(leaf.path)
            ]
            sums = tuple(checksum(leaf.source) for leaf in leaves)
        except ChainError as error:
            return Report(error=str(error))
        paths = tuple(leaf.path for leaf in leaves)
        known, self._paths = paths == self._paths, paths
        return Report(None if known else paths, sums)


class Comparison:
    """Compares what ranks reported with what was stored, and says who differs."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._paths: dict[int, tuple[Path, ...]] = {}  # of each rank
        self._reports: dict[int, tuple[int | None, Sequence[Report]]] = {}  # by number of the snapshot
        self._stored: dict[int, Mapping[Path, int]] = {}
        self._named: set[int] = set()  # ranks that differed the last time

    def reported(self, number: int, step: int | None, reports: Sequence[Report]) -> None:
        """Take note of what every rank had at the moment of a snapshot, whose number is 0 where it failed."""
        for rank, report in enumerate(reports):
            if report.paths is not None:
                self._paths[rank] = report.paths
        if number:
            self._reports[number] = step, reports
            self._compare(number)

    def stored(self, number: int, sums: Mapping[Path, int]) -> None:
        """Take note of what was stored."""
        for failed in [each for each in self._reports if each < number]:  # snapshots land in order
            del self._reports[failed]
        self._stored[number] = sums
        self._compare(number)

    def _compare(self, number: int) -> None:
        if number not in self._reports or number not in self._stored:
            return
        (step, reports), stored = self._reports.pop(number), self._stored.pop(number)
        for rank, report in enumerate(reports):
            if rank == 0:
                continue
            text = f"cannot be read: {report.error}" if report.error else self._difference(rank, report, stored)
            if text and rank not in self._named:
                tell(
                    self._observer,
                    "ranks-diverge",
                    f"the replica of rank {rank} at step {step} {text}. Snapshots hold rank 0's. Look for "
                    "parameters that DistributedDataParallel does not know, or for what only some ranks do",
                )
            (self._named.add if text else self._named.discard)(rank)

    def _difference(self, rank: int, report: Report, stored: Mapping[Path, int]) -> str:
        pairs = zip(self._paths[rank], report.sums, strict=True)
        other = [path for path, found in pairs if stored.get(path) != found]
        if not other:
            return ""
        more = f" and {len(other) - 1} more arrays" if len(other) > 1 else ""
        return f"differs from that of rank 0 in {format_path(other[0])}{more}"


def buffers(objects: Sequence[Any], named: Mapping[str, Any]) -> set[Path]:
    """Return the paths of the buffers of modules: replicas may differ in them.

    DistributedDataParallel copies rank 0's running statistics to all before a forward pass, not after the last one.
    """
    modules = [("model", thing) for thing in objects] + list(named.items())
    return {
        (name, buffer)
        for name, thing in modules
        if isinstance(thing, torch.nn.Module)
        for buffer, _ in thing.named_buffers()
    }
