"""Direct: a snapshot straight from the live state, where there is no memory for a copy of it.

The commit reads the state piece by piece, so it takes the memory of a commit whatever the size of the state; training
waits until it is durable.
"""

from collections.abc import Mapping
from typing import Any

from chainstore.errors import MemoryShort
from chainstore.manager.messages import Durable, Failed, Request
from chainstore.manager.resuming import tell
from chainstore.manager.storing import store_leaves
from chainstore.model.paths import Path
from chainstore.observe import Observer
from chainstore.repository import Repository, flatten


class Direct:
    """Commits live states in the thread that trains, and says once that it does."""

    def __init__(self, repo: Repository, observer: Observer) -> None:
        self._repo, self._observer = repo, observer
        self._said = False

    def say(self, short: MemoryShort) -> None:
        """Say that training waits for snapshots from here on, unless that was said since the last capture."""
        if not self._said:
            self._said = True
            tell(
                self._observer,
                short.code,
                f"{short}, so snapshots are made without a copy: TRAINING WAITS until each of them is durable. "
                "Raise the memory limit of the job (memory.max of its cgroup: Slurm's --mem, Kubernetes' "
                f"resources.limits.memory) by {_lacking(short) / 1e6:,.0f} MB or more, or have less in the state; the "
                "next snapshot looks anew",
            )

    def captured(self) -> None:
        """Take note that there was memory for a capture."""
        self._said = False

    def store(
        self, number: int, state: Mapping[str, Any], request: Request
    ) -> tuple[Durable | Failed, tuple[Path, ...]]:
        """Make a state durable, and return what became of it and the paths of its leaves.

        Raises:
            UnsupportedState: some values cannot be stored.
        """
        leaves = flatten(state)
        return store_leaves(self._repo, number, leaves, request), tuple(leaf.path for leaf in leaves)


def _lacking(short: MemoryShort) -> int:
    """Return how many bytes more there should be; all of a copy, where the system refused what seemed to be there."""
    return short.needed - short.left if short.left < short.needed else short.needed
