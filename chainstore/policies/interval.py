"""Interval: how often a snapshot pays, by Young and Daly, from what was measured.

Snapshots cost time, and so does work that is lost for want of one.  Their sum is least at

    tau = C + sqrt(2 (M + R) C + C^2)

with C the seconds that training loses to a snapshot (the blocking copy, and the slowdown of the steps while it is
written in the background), M the mean time between failures (`policies.failures`) and R what a restart takes.
Sources: Young 1974; Daly 2006; with R, arXiv 2410.18124.

A young run is not trusted: it begins with short intervals, which get longer as it lives.  Without that, one that fails
every ten minutes would lose its first hour before it has learned anything.

After a restart failures come thicker and thin out again, if the run's past says so (`FailureRate.ageing`): the interval
begins shorter and grows back.

Everything here is a value: `Interval` holds what is known, its methods return the next, `to_dict` goes into the
metadata of a commit, so that a run that starts again knows what the one before it did.

    >>> known = Interval(devices=8).snapshotted(blocking_s=0.4, background_s=20, ran_s=600)
    >>> print(known.explain())
    every 73.4 s: a snapshot costs 0.4 s, failures come every 283 d, reckoned as 110 min while the run is young
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import sqrt

from chainstore.errors import InvalidInput
from chainstore.policies.failures import FailureRate

NEWEST = 0.3  # weight of the newest measurement of costs
RECOVERY_S = 60.0  # until a restart was measured
UNKNOWN_S = 60.0  # the interval until a snapshot was measured
MOST = 1e15  # seconds, hours, failures: more is no measurement, and sums of it would overflow
TRUSTED = 10  # M is at most so many times what the run has lived through: on a calm first day that costs 0.15 %
LEAST_COST_S = 0.001  # steps differ by more than that, so less cannot be told from nothing

_COSTS = ("blocking_s", "slowdown", "background_s", "recovery_s", "since_restart_s", "last_ran_s")
_HISTORY = ("count", "hours", "recent", "recent_hours", "evidence")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a user asks of an interval, whatever the optimum.

    Attributes:
        max_lost_s: seconds of work that may be lost to one failure; wins over `max_overhead`.
        max_overhead: share of the time, 0 to 1, that snapshots may cost.
        in_flight: snapshots that may be on their way to the disk at once; the next one must find room, which wins
            over both.

    Raises:
        InvalidInput: one of them is outside what makes sense.
    """

    max_lost_s: float = 1800.0
    max_overhead: float = 0.05
    in_flight: int = 1

    def __post_init__(self) -> None:
        if not 0.001 <= self.max_lost_s <= 1e9:
            raise InvalidInput(f"lost work is limited to seconds from 0.001 to 1e9, not {self.max_lost_s!r}")
        if not 0 < self.max_overhead <= 1:
            raise InvalidInput(f"the overhead of snapshots is a share above 0 and up to 1, not {self.max_overhead!r}")
        if type(self.in_flight) is not int or self.in_flight < 1:
            raise InvalidInput(f"snapshots in flight are a number from 1 on, not {self.in_flight!r}")


@dataclass(frozen=True, slots=True)
class Interval:
    """What is known about the costs of snapshots and about failures, and the interval that follows from it.

    Attributes:
        devices: how many GPUs the run is on; 1 without any.
        blocking_s: seconds that training stands still for a snapshot; None until one was measured.
        slowdown: by what share steps take longer while one is written, 0 where not at all.
        background_s: seconds from the capture until a snapshot is durable.
        recovery_s: seconds from a failure until training goes on.
        failures: how often the run is interrupted.
        restarts: how often it was resumed, planned stops included.
        since_restart_s: seconds of training since the last failure; None before the first.
        last_ran_s: seconds between the last two snapshots.
        limits: what the user asks; it does not travel with the state.
    """

    devices: int = 1
    blocking_s: float | None = None
    slowdown: float = 0.0
    background_s: float = 0.0
    recovery_s: float = RECOVERY_S
    failures: FailureRate = field(default_factory=FailureRate)
    restarts: int = 0
    since_restart_s: float | None = None
    last_ran_s: float = 0.0
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        if type(self.devices) is not int or self.devices < 1:
            raise InvalidInput(f"devices are a number from 1 on, not {self.devices!r}")

    # -- what happened

    def snapshotted(
        self, blocking_s: float, background_s: float, *, ran_s: float, slowdown: float | None = None
    ) -> "Interval":
        """Return what is known after a snapshot.

        Args:
            blocking_s, background_s: seconds that this one took.
            ran_s: seconds of the run since the last one, or since it was resumed.
            slowdown: measured while it was written (`slowdown_of`); None where nothing was.

        Raises:
            InvalidInput: one of them is negative or no number.
        """
        _check("a snapshot", blocking_s, background_s, ran_s, slowdown or 0.0)
        first = self.blocking_s is None
        return Interval(
            self.devices,
            blocking_s if self.blocking_s is None else _mixed(self.blocking_s, blocking_s),
            self.slowdown if slowdown is None else slowdown if first else _mixed(self.slowdown, slowdown),
            background_s if first else _mixed(self.background_s, background_s),
            self.recovery_s,
            self.failures.ran(ran_s * self.devices / 3600),
            self.restarts,
            None if self.since_restart_s is None else self.since_restart_s + ran_s,
            ran_s,
            self.limits,
        )

    def restarted(
        self, *, lost_s: float | None = None, recovery_s: float | None = None, failure: bool = True
    ) -> "Interval":
        """Return what is known after the run was resumed from the snapshot that held this state.

        Args:
            lost_s: seconds the run went on after that snapshot; None where nobody knows, which counts half an interval.
            recovery_s: seconds from the failure until training goes on; None where nobody knows.
            failure: False for a stop that saved first: it lost no work, so it says nothing about M.

        Raises:
            InvalidInput: one of them is negative or no number.
        """
        lost = self.last_ran_s / 2 if lost_s is None else lost_s
        recovery = self.recovery_s if recovery_s is None else recovery_s
        _check("a restart", lost, recovery)
        if not failure:
            return replace(self, restarts=self.restarts + 1)
        gap = None if self.since_restart_s is None else (self.since_restart_s + lost) * self.devices / 3600
        return replace(
            self,
            recovery_s=recovery if not self.restarts else _mixed(self.recovery_s, recovery),
            failures=self.failures.ran(lost * self.devices / 3600).failed(gap),
            restarts=self.restarts + 1,
            since_restart_s=0.0,
        )

    # -- what follows

    @property
    def cost_s(self) -> float:
        """Seconds that a snapshot costs training, 1 ms at least."""
        return max(LEAST_COST_S, (self.blocking_s or 0.0) + self.slowdown * self.background_s)

    @property
    def mean_time_between_failures_s(self) -> float:
        """Expected seconds from one failure to the next, in the long run."""
        return 3600 / self.failures.per_hour(self.devices)

    @property
    def optimal_s(self) -> float:
        """Seconds from one snapshot to the next that lose the least time in the long run, without limits."""
        return self._best_s(self.mean_time_between_failures_s)

    @property
    def seconds(self) -> float:
        """Seconds from this snapshot to the next."""
        return self._bounded()[0]

    def explain(self) -> str:
        """Return one sentence that says the interval, what it follows from, and what else decided it."""
        seconds, bound, mean_s = self._bounded()
        if self.blocking_s is None:
            return f"every {span_text(seconds)} until a snapshot shows what one costs"
        text = f"every {span_text(seconds)}: a snapshot costs {span_text(self.cost_s)}"
        if self.slowdown * self.background_s > 0.01 * self.cost_s:
            slowed = f"{span_text(self.background_s)} at {100 * self.slowdown:.2g} % slower steps"
            text += f" ({span_text(self.blocking_s or 0.0)} standing still and {slowed})"
        text += f", failures come every {span_text(self.mean_time_between_failures_s)}"
        if mean_s < 0.95 * self.mean_time_between_failures_s and not bound:
            young = self._trusted_s < self.mean_time_between_failures_s
            text += f", reckoned as {span_text(mean_s)} {'while the run is young' if young else 'after the last one'}"
        return f"{text}; {bound}" if bound else text

    def _best_s(self, mean_s: float) -> float:
        cost = self.cost_s
        return cost + sqrt(2 * (mean_s + self.recovery_s) * cost + cost * cost)

    @property
    def _trusted_s(self) -> float:
        """Seconds between failures that are believed of a run which has lived through so little."""
        return TRUSTED * (UNKNOWN_S + self.failures.hours * 3600 / self.devices)

    def _bounded(self) -> tuple[float, str, float]:
        """Return seconds, the sentence about the limit that decided them, and the M that was reckoned with."""
        mean_s = self.mean_time_between_failures_s
        if self.blocking_s is None:
            return min(UNKNOWN_S, self.limits.max_lost_s), "", mean_s
        lately = self.failures.lately_per_hour(self.devices)
        mean_s = min(mean_s, self._trusted_s)
        steady_s = self._best_s(mean_s)
        if self.since_restart_s is not None:
            mean_s /= self.failures.ageing(max(self.since_restart_s, steady_s) / mean_s)
        if lately * mean_s > 3600:
            mean_s = 3600 / lately
        seconds, bound, limits = self._best_s(mean_s), "", self.limits
        if seconds < (least := self.cost_s / limits.max_overhead):
            seconds, bound = (
                least,
                f"more than {100 * limits.max_overhead:.3g} % of the time is not to be spent on them",
            )
        if seconds > limits.max_lost_s:
            seconds, bound = limits.max_lost_s, f"more than {span_text(limits.max_lost_s)} of work is not to be lost"
        if seconds < (least := self.background_s / limits.in_flight):
            seconds, bound = least, f"one takes {span_text(self.background_s)} to be durable"
        return seconds, bound, mean_s

    # -- as it travels

    def to_dict(self) -> dict[str, float | int | None]:
        """Return it as JSON values; `from_dict` reads them."""
        costs = {name: getattr(self, name) for name in _COSTS}
        history = {f"failures_{name}": getattr(self.failures, name) for name in _HISTORY}
        return {"devices": self.devices, "restarts": self.restarts, **costs, **history}

    @classmethod
    def from_dict(cls, data: Mapping[str, object], limits: Limits | None = None) -> "Interval":
        """Return what `to_dict` gave; what is missing is as at the start, what is unknown is of a later version.

        Raises:
            InvalidInput: a value is negative, enormous or no number.
        """
        start, found = cls(), {}
        for name in (*_COSTS, "restarts"):
            found[name] = _number(data, name, getattr(start, name))
        history = {name: _number(data, f"failures_{name}", 0.0, name == "evidence") or 0.0 for name in _HISTORY}
        devices = _number(data, "devices", 1) or 0
        found["restarts"] = int(found["restarts"] or 0)
        return cls(devices=int(devices), failures=FailureRate(**history), limits=limits or Limits(), **found)  # type: ignore[arg-type]


def slowdown_of(busy_s: float, busy_steps: int, idle_s: float, idle_steps: int) -> float | None:
    """Return by what share steps took longer while a snapshot was written; None where either was not seen."""
    if not busy_steps or not idle_steps or idle_s <= 0:
        return None
    return max(0.0, (busy_s / busy_steps) / (idle_s / idle_steps) - 1)


def span_text(seconds: float) -> str:
    """Return a length of time for people: `0.4 s`, `312 s`, `30 min`, `5.1 h`, `12 d`."""
    units = ((900, "s", 1), (2 * 3600, "min", 60), (48 * 3600, "h", 3600))
    unit, size = next(((unit, size) for most, unit, size in units if seconds < most), ("d", 86400))
    return f"{seconds / size:.3g} {unit}" if seconds < 100 * size else f"{seconds / size:.0f} {unit}"


def _mixed(before: float, newest: float) -> float:
    return before + NEWEST * (newest - before)


def _check(what: str, *numbers: float) -> None:
    for number in numbers:
        if not 0 <= number <= MOST:
            raise InvalidInput(f"the seconds of {what} are numbers from 0 on, not {number!r}")


def _number(data: Mapping[str, object], name: str, default: float | None, signed: bool = False) -> float | None:
    value = data.get(name, default)
    if value is None and default is None:
        return None
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else float("nan")
    if not (-MOST if signed else 0) <= number <= MOST:
        raise InvalidInput(f"{name} of a stored interval is a number{'' if signed else ' from 0 on'}, not {value!r}")
    return number
