"""Progress: what a trigger looks at, and what a trigger is.

Values only: the manager fills them in at every step, so they are small, and whoever writes a trigger of their own needs
nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, SupportsFloat, runtime_checkable


@dataclass(frozen=True, slots=True)
class Moment:
    """Where the last snapshot was captured; `time` on the clock of `Progress.now`."""

    step: int
    time: float
    batch: int | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands.

    Attributes:
        step: completed optimizer steps.
        now: seconds on any clock that only goes forward.
        batch, epoch: of the call, None where it named none.
        metrics: of the call.
        last: where the last snapshot was captured; None before the first.
        pending: snapshots that are captured and not durable yet.
        signalled: why somebody outside asks for a snapshot, "" if nobody does.
        best: of each `OnBest.key`, the best value that has a snapshot; `bests_after` makes it.
    """

    step: int
    now: float
    batch: int | None = None
    epoch: int | None = None
    metrics: Mapping[str, SupportsFloat] = field(default_factory=dict)
    last: Moment | None = None
    pending: int = 0
    signalled: str = ""
    best: Mapping[str, float] = field(default_factory=dict)


@runtime_checkable
class Trigger(Protocol):
    """The seam: anything with this method is a trigger."""

    def due(self, progress: Progress) -> str | None:
        """Return why a snapshot is due, None if none is; asked at every step, so it has 2 us."""
        ...
