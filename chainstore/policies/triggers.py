"""Triggers: when a snapshot is due.

A trigger looks at the progress of a run and gives a reason, a few words for the log and the commit, or None.  It keeps
nothing: when it was last satisfied it sees from where the last snapshot was taken, so a run that was resumed goes on as
one that never stopped, and whatever else caused a snapshot counts too.  The manager asks at every step: where nothing
is due an answer takes less than 2 us.

    >>> from chainstore.policies.progress import Moment
    >>> rules = as_trigger([EverySteps(100), EverySeconds(1800)])
    >>> rules.due(Progress(step=200, now=60.0, last=Moment(step=199, time=59.0)))
    'step 200 (every 100 steps)'

Counting rules go by multiples: every 100 steps is 100, 200, 300, whatever other rules took a snapshot between.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from math import isfinite, isnan
from operator import index
from typing import Literal, SupportsFloat

from chainstore.errors import InvalidInput
from chainstore.policies.interval import Interval
from chainstore.policies.progress import Progress, Trigger
from chainstore.policies.spans import format_span


@dataclass(frozen=True, slots=True)
class EverySteps:
    """Due when a multiple of `n` optimizer steps was reached since the last snapshot.

    Raises:
        InvalidInput: `n` is no number from 1 on.
    """

    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", _count("steps", self.n))

    def due(self, progress: Progress) -> str | None:
        # A step below the last one's is a run that went back: other quotients are due as well.
        n, last = self.n, progress.last
        if progress.step // n == (last.step // n if last is not None else 0):
            return None
        return f"step {progress.step} (every {_plural(n, 'step')})"


@dataclass(frozen=True, slots=True)
class EveryBatches:
    """Due when a multiple of `n` batches, counted from the start of the epoch, was reached since the last snapshot.

    Never where calls name no batch.

    Raises:
        InvalidInput: `n` is no number from 1 on.
    """

    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", _count("batches", self.n))

    def due(self, progress: Progress) -> str | None:
        batch, last = progress.batch, progress.last
        if batch is None:
            return None
        same = last is not None and last.epoch == progress.epoch and last.batch is not None
        before = last.batch // self.n if same and last is not None and last.batch is not None else 0
        if batch // self.n == before:
            return None
        return f"batch {batch} (every {_plural(self.n, 'batch', 'batches')})"


@dataclass(frozen=True, slots=True)
class EverySeconds:
    """Due when the last snapshot is `seconds` old; at once where there is none.

    Raises:
        InvalidInput: `seconds` is no number from 0.001 to 1e9.
    """

    seconds: float

    def __post_init__(self) -> None:
        given = self.seconds
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0.001 <= given <= 1e9:
            raise InvalidInput(f"an interval is a number of seconds from 0.001 to 1e9, not {given!r}")
        object.__setattr__(self, "seconds", round(given, 6))  # as its text says it again

    def due(self, progress: Progress) -> str | None:
        last = progress.last
        if last is not None and 0 <= progress.now - last.time < self.seconds:
            return None
        return f"{_span(self.seconds)} since the last snapshot" if last is not None else "first snapshot"


@dataclass(frozen=True, slots=True)
class EveryEpoch:
    """Due at the first call of an epoch whose number is a multiple of `n`, if the last snapshot is of another one.

    The number of an epoch is what calls say; one that is over is noticed when the next one begins, or when the last
    call of a loop names the next.  Never where calls name no epoch.

    Raises:
        InvalidInput: `n` is no number from 1 on.
    """

    n: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", _count("epochs", self.n))

    def due(self, progress: Progress) -> str | None:
        epoch, last = progress.epoch, progress.last
        if epoch is None:
            return None
        if epoch // self.n == (last.epoch // self.n if last is not None and last.epoch is not None else 0):
            return None
        return f"epoch {epoch} (every {_plural(self.n, 'epoch')})"


@dataclass(frozen=True, slots=True)
class OnBest:
    """Due when a metric is better than at every snapshot so far.

    Attributes:
        metric: its name; calls without it, and NaN, are never due.
        mode: whether less ("min") or more ("max") is better.
        min_delta: by how much it must be better.
        patience: steps after any snapshot before one is taken for this; early in training nearly every step is best.

    Raises:
        InvalidInput: one of them makes no sense.
    """

    metric: str
    mode: Literal["min", "max"] = "min"
    min_delta: float = 0.0
    patience: int = 0
    key: str = field(init=False, repr=False, compare=False, default="")

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str) or not self.metric:
            raise InvalidInput(f"best names a metric, not {self.metric!r}")
        if self.mode not in ("min", "max"):
            raise InvalidInput(f"best is by 'min' or 'max', not {self.mode!r}")
        delta = self.min_delta
        if isinstance(delta, bool) or not isinstance(delta, int | float) or not (delta >= 0 and isfinite(delta)):
            raise InvalidInput(f"min_delta is a number from 0 on, not {delta!r}")
        object.__setattr__(self, "patience", _count("steps of patience", self.patience, least=0))
        object.__setattr__(self, "key", f"{self.metric}:{self.mode}")

    def due(self, progress: Progress) -> str | None:
        given = progress.metrics.get(self.metric)
        if given is None:
            return None
        last = progress.last
        if self.patience and last is not None and 0 <= progress.step - last.step < self.patience:
            return None
        value, best = float(given), progress.best.get(self.key)
        if isnan(value) or (best is not None and not self._better(value, best)):
            return None
        return f"best {self.metric} so far: {value:g}"

    def _better(self, value: float, best: float) -> bool:
        gain = best - value if self.mode == "min" else value - best
        return gain > self.min_delta if self.min_delta else gain > 0


@dataclass(frozen=True, slots=True)
class WhenDurable:
    """Due at the first step after the last snapshot became durable: as often as the disk allows."""

    def due(self, progress: Progress) -> str | None:
        last = progress.last
        if progress.pending or (last is not None and last.step == progress.step):
            return None
        return "the last one is durable" if last is not None else "first snapshot"


@dataclass(frozen=True, slots=True)
class Signal:
    """Due when somebody outside asks: a signal, a button, another thread.  They say why in `Progress.signalled`."""

    def due(self, progress: Progress) -> str | None:
        return progress.signalled or None


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Due when the interval is over that loses least to failures and to snapshots (`policies.interval`).

    What was learned since is put in by making a new one: `Adaptive(known)`.
    """

    known: Interval = field(default_factory=Interval)
    seconds: float = field(init=False, repr=False, compare=False, default=0.0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds", self.known.seconds)

    def due(self, progress: Progress) -> str | None:
        last = progress.last
        if last is not None and 0 <= progress.now - last.time < self.seconds:
            return None
        return f"adaptive: {self.known.explain()}" if last is not None else "first snapshot"


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Due when any of its triggers is; the reasons of all that are.

    Raises:
        InvalidInput: there is none.
    """

    triggers: tuple[Trigger, ...]

    def __post_init__(self) -> None:
        if not self.triggers:
            raise InvalidInput("no trigger is given", hint="EverySteps(100) takes a snapshot every 100 steps")

    def due(self, progress: Progress) -> str | None:
        reasons = None
        for trigger in self.triggers:
            reason = trigger.due(progress)
            if reason is not None and reason != reasons:
                reasons = reason if reasons is None else f"{reasons}; {reason}"
        return reasons


def as_trigger(triggers: Trigger | Sequence[Trigger]) -> Trigger:
    """Return one trigger, or several as one.

    Raises:
        InvalidInput: something is no trigger, or there is none.
    """
    if isinstance(triggers, Trigger):
        return triggers
    if isinstance(triggers, str) or not isinstance(triggers, Iterable):
        raise InvalidInput(f"{triggers!r} is no trigger", hint="write EverySteps(100), or a list of such rules")
    found = tuple(as_trigger(each) for each in triggers)
    return found[0] if len(found) == 1 else AnyOf(found)


def simple_triggers(trigger: Trigger) -> tuple[Trigger, ...]:
    """Return what a trigger is made of, without `AnyOf`."""
    if isinstance(trigger, AnyOf):
        return tuple(part for each in trigger.triggers for part in simple_triggers(each))
    return (trigger,)


def quiet_steps(trigger: Trigger, step: int) -> int:
    """Return after how many steps, at the earliest, a trigger is due at one step and no other.

    Rules that go by time or by what the disk does are due from a moment on: any step soon after will do.  So it is with
    the first step of an epoch, which whoever asks sees for itself.
    """
    least = 1 << 31
    for rule in simple_triggers(trigger):
        if isinstance(rule, EverySteps):
            least = min(least, rule.n - step % rule.n)
        elif not isinstance(rule, EverySeconds | EveryEpoch | WhenDurable | Adaptive):
            return 1
    return least


def bests_after(
    best: Mapping[str, float], metrics: Mapping[str, SupportsFloat], trigger: Trigger
) -> Mapping[str, float]:
    """Return `Progress.best` after a snapshot was captured with these metrics."""
    found = dict(best)
    for rule in simple_triggers(trigger):
        if isinstance(rule, OnBest) and rule.metric in metrics:
            value = float(metrics[rule.metric])
            choose = min if rule.mode == "min" else max
            if not isnan(value):
                found[rule.key] = choose(value, found.get(rule.key, value))
    return found


def _count(what: str, given: object, least: int = 1) -> int:
    try:
        number = index(given)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if isinstance(given, bool) or number < least:
        raise InvalidInput(f"{what} are a whole number from {least} on, not {given!r}")
    return number


def _plural(number: int, one: str, many: str = "") -> str:
    return one if number == 1 else f"{number} {many or one + 's'}"


def _span(seconds: float) -> str:
    return format_span(timedelta(seconds=seconds))
