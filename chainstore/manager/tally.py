"""The tally: what became of the snapshots of a run, as far as was heard."""

from dataclasses import dataclass, field

_STALE_INTERVALS = 3


@dataclass(slots=True)
class Tally:
    """What became of the snapshots of a run.

    Attributes:
        captured, durable, failed, skipped: how many.
        last_step, last_time, last_commit: of the newest durable one; the time is of a clock that only grows.
        steps: of those that are on their way, by number; begun: when their captures began and ended.
    """

    captured: int = 0
    durable: int = 0
    failed: int = 0
    skipped: int = 0
    last_step: int | None = None
    last_time: float | None = None
    last_commit: str = ""
    steps: dict[int, int | None] = field(default_factory=dict)
    begun: dict[int, tuple[float, float]] = field(default_factory=dict)

    def how_long(self, now: float) -> str:
        """Return how long nothing became durable, where that is long."""
        if self.last_time is None:
            return ", and no snapshot of this run is durable yet"
        if self.failed < _STALE_INTERVALS:
            return ""
        minutes = (now - self.last_time) / 60
        return f". THE NEWEST DURABLE SNAPSHOT IS {minutes:.0f} MINUTES OLD (step {self.last_step})"
