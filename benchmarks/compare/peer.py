"""What every peer can be asked to do."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import torch

from benchmarks.measure import disk_bytes
from benchmarks.workloads import State, flat, same_bits


class Peer(ABC):
    """One way to keep states, in a folder of its own.

    What a peer cannot do is not in `can`, and nobody asks it to.

    Attributes:
        name: in tables.
        can: the jobs it takes part in.
        durable: whether a state survives a power cut once `save` has returned.
        whole: whether plain values come back too, not only tensors.
        child_peak_bytes: the most memory a process had that the last call started.
    """

    name: ClassVar[str]
    can: ClassVar[frozenset[str]]
    durable: ClassVar[bool] = True
    whole: ClassVar[bool] = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.saves = 0
        self.child_peak_bytes = 0
        folder.mkdir(parents=True)

    @classmethod
    @abstractmethod
    def version(cls) -> str | None:
        """Return the version in use, None where it is not installed."""

    def ready(self) -> None:
        """Have open what a training run has open all the time; not timed."""
        return

    def rest(self) -> None:
        """Have nothing open; not timed."""
        return

    def prune(self) -> None:
        """Delete all states but the newest two, where each is a file; not timed."""
        return

    def stored(self) -> int:
        """Return the bytes on disk."""
        return disk_bytes(self.folder)

    @abstractmethod
    def save(self, state: State, step: int, loss: float) -> None: ...

    @abstractmethod
    def load(self) -> object:
        """Return the newest state in fresh memory."""

    def names(self) -> int:
        """Open, and return how many arrays the newest state has, or -1 where only whole archives are listed."""
        raise NotImplementedError

    def tensor(self, path: str) -> torch.Tensor:
        """Open, and return one array of the newest state."""
        raise NotImplementedError

    def rows(self, path: str, start: int, stop: int) -> torch.Tensor:
        """Open, and return rows of one array."""
        raise NotImplementedError

    def history(self) -> list[tuple[int, float]]:
        """Open, and return step and loss of every save, oldest first."""
        raise NotImplementedError

    def changed(self) -> set[str]:
        """Open, and return the names of the arrays whose bits differ between the newest two saves."""
        raise NotImplementedError


def changed_between(before: Mapping[str, object] | object, after: object) -> set[str]:
    """Compare two loaded states tensor by tensor."""
    old, new = flat(before), flat(after)
    return {name for name in old.keys() | new.keys() if not same_bits(old[name], new[name])}
