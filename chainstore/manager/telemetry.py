"""Telemetry: what a manager counts and measures, for Prometheus, for notebooks, and for what learns from it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from chainstore.display import size, table
from chainstore.manager.endings import Ending
from chainstore.metrics import Registry, SnapshotMetrics, render
from chainstore.policies.interval import span_text

META = "interruptions"  # where the counts stand in a commit's metadata


@dataclass(frozen=True, slots=True)
class Landing:
    """A snapshot that became durable.

    Attributes:
        captured_at: when its capture began, on the clock of the captures; age_s: seconds since then.
        stall_s: that training stood still.  written_s: that it was written, beside training or within the stall.
        durable_s: from the beginning of the capture until it was durable.
        raw_bytes: of the state.  new_bytes: of these, not stored before.  stored_bytes: what the new ones take.
        delta_bytes: of the new ones, those that are stored as differences.
    """

    step: int | None
    commit: str
    captured_at: float
    age_s: float
    stall_s: float
    written_s: float
    durable_s: float
    raw_bytes: int
    new_bytes: int
    stored_bytes: int
    delta_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ManagerStats:
    """What a manager did so far; seconds and bytes.

    Attributes:
        branch: where snapshots go.
        durable, pending, failed, skipped: snapshots, by what became of them.
        stall_s: that training stood still, in all; share_stalled of the time since the manager was made.
        time_to_durable_s: on average, from the beginning of a capture.
        raw_bytes: of the states.  new_bytes: of these, not stored before.  stored_bytes: what the new ones take.
        interval_s: between the last two captures, 0 before there were two.  optimal_s: what would lose least time.
        resumes: times that the run went on from a snapshot.  interruptions: times it was interrupted, by cause.
        last_step, last_commit: of the newest durable snapshot; last_age_s: seconds since it was captured, or None.
    """

    branch: str
    durable: int
    pending: int
    failed: int
    skipped: int
    stall_s: float
    share_stalled: float
    time_to_durable_s: float
    raw_bytes: int
    new_bytes: int
    stored_bytes: int
    interval_s: float
    optimal_s: float
    resumes: int
    interruptions: Mapping[str, int] = field(default_factory=dict)
    last_step: int | None = None
    last_commit: str = ""
    last_age_s: float | None = None

    def __str__(self) -> str:
        return "\n".join(f"{name:16} {value}" for name, value in self._rows())

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        return table("Snapshots", self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        failures = ", ".join(f"{number} {cause}" for cause, number in sorted(self.interruptions.items()))
        last = "none yet" if self.last_age_s is None else f"step {self.last_step}, {span_text(self.last_age_s)} ago"
        return [
            ("branch", self.branch),
            (
                "snapshots",
                f"{self.durable} durable, {self.pending} pending, {self.failed} failed, {self.skipped} skipped",
            ),
            ("newest durable", last),
            ("stall", f"{span_text(self.stall_s)} in all, {100 * self.share_stalled:.2g} % of the time"),
            ("time to durable", span_text(self.time_to_durable_s)),
            ("state", f"{size(self.raw_bytes)}, {size(self.new_bytes)} of it new, stored in {size(self.stored_bytes)}"),
            ("interval", f"{span_text(self.interval_s)}; {span_text(self.optimal_s)} would lose least"),
            ("resumes", f"{self.resumes}; interruptions: {failures or 'none'}"),
        ]


class Telemetry:
    """Counts what happens to the snapshots of a manager.

    Args:
        labels: what every metric carries.
        clock: seconds, ever growing; the one of the captures.
        wall: seconds since 1970 UTC.

    Attributes:
        registry, metrics: what Prometheus reads.
    """

    def __init__(
        self,
        labels: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.registry = Registry(labels)
        self.metrics = SnapshotMetrics.on(self.registry)
        self._clock, self._wall = clock, wall
        self._begun = clock()
        self._captured_at: float | None = None
        self._last_step: int | None = None
        self._last_commit = ""

    # -- what happens

    def captured(self, at: float, stall_s: float, pending: int) -> None:
        """Count a capture: when it began, how long training stood still, how many are on their way now."""
        self.metrics.stall.observe(stall_s)
        self.metrics.pending.set(pending)
        if self._captured_at is not None:
            self.metrics.interval.set(at - self._captured_at)
        self._captured_at = at

    def landed(self, landing: Landing, pending: int) -> None:
        """Count a snapshot that became durable."""
        metrics = self.metrics
        metrics.snapshots.inc()
        metrics.background.observe(max(0.0, min(landing.written_s, landing.durable_s - landing.stall_s)))
        metrics.durable.observe(landing.durable_s)
        kinds = {
            "new": landing.new_bytes,
            "delta": landing.delta_bytes,
            "stored": landing.stored_bytes,
            "reused": landing.raw_bytes - landing.new_bytes,
        }
        for kind, nbytes in kinds.items():
            metrics.bytes.of(kind=kind).inc(max(0, nbytes))
        metrics.pending.set(pending)
        self._newest(self._wall() - landing.age_s, landing.step, landing.commit)

    def failed(self, code: str, pending: int) -> None:
        """Count a snapshot that did not become durable."""
        self.metrics.failed.of(error=code).inc()
        self.metrics.pending.set(pending)

    def skipped(self) -> None:
        """Count a snapshot that was due and not taken."""
        self.metrics.skipped.inc()

    def resumed(
        self,
        meta: Mapping[str, Any],
        time: datetime,
        step: int | None,
        commit: str,
        ending: Ending | None,
        restarts: int,
    ) -> None:
        """Count that the run went on from a commit; the counts of the runs before it come with it.

        Args:
            ending: how the run before ended; None where it is this one, which went back.
            restarts: of the run before this process.
        """
        metrics = self.metrics
        if ending is not None:
            said = meta.get(META)
            for cause, number in said.items() if isinstance(said, Mapping) else ():
                if isinstance(number, int) and number > 0:
                    metrics.interruptions.of(cause=cause).inc(number)
            metrics.resumes.inc(restarts)
            if ending.cause:
                metrics.interruptions.of(cause=ending.cause).inc()
        metrics.resumes.inc()
        self._newest(time.timestamp(), step, commit)

    def moved(self, branch: str) -> None:
        """Take note that snapshots go to another branch."""
        self.registry.labels["branch"] = branch

    # -- what is told

    def meta(self) -> dict[str, object]:
        """Return what a commit says of it."""
        counts = self._interruptions()
        return {META: counts} if counts else {}

    def text(self, optimal_s: float) -> str:
        """Return the metrics as Prometheus reads them; the age is that of this moment."""
        self.metrics.optimal.set(optimal_s)
        self.metrics.last_age.set(self._age() or 0.0)
        return render(self.registry)

    def stats(self, branch: str, pending: int, optimal_s: float) -> ManagerStats:
        """Return everything at this moment."""
        metrics, ran_s = self.metrics, max(1e-9, self._clock() - self._begun)
        stall, durable = metrics.stall.read(), metrics.durable.read()
        nbytes = {kind: int(metrics.bytes.of(kind=kind).read()) for kind in ("new", "stored", "reused")}
        return ManagerStats(
            branch=branch,
            durable=int(metrics.snapshots.read()),
            pending=pending,
            failed=sum(int(value.read()) for _, value in metrics.failed.values()),
            skipped=int(metrics.skipped.read()),
            stall_s=stall.sum,
            share_stalled=min(1.0, stall.sum / ran_s),
            time_to_durable_s=durable.sum / durable.count if durable.count else 0.0,
            raw_bytes=nbytes["new"] + nbytes["reused"],
            new_bytes=nbytes["new"],
            stored_bytes=nbytes["stored"],
            interval_s=metrics.interval.read(),
            optimal_s=optimal_s,
            resumes=int(metrics.resumes.read()),
            interruptions=self._interruptions(),
            last_step=self._last_step,
            last_commit=self._last_commit,
            last_age_s=self._age(),
        )

    def _newest(self, captured: float, step: int | None, commit: str) -> None:
        self._last_step, self._last_commit = step, commit
        self.metrics.last_time.set(captured)
        self.metrics.last_step.set(step or 0)

    def _age(self) -> float | None:
        if not self._last_commit:
            return None
        return max(0.0, self._wall() - self.metrics.last_time.read())

    def _interruptions(self) -> dict[str, int]:
        return {key[0]: int(value.read()) for key, value in self.metrics.interruptions.values() if value.read()}
