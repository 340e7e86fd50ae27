"""Learning: how often a snapshot pays for this run, from what snapshots cost it and how often it is interrupted.

What was learned travels in the metadata of commits and comes back when a run goes on.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median

import torch

from chainstore.errors import InvalidInput
from chainstore.manager.endings import Ending
from chainstore.observe import Notice, Observer
from chainstore.policies.interval import Interval, Limits, slowdown_of
from chainstore.policies.progress import Trigger
from chainstore.policies.triggers import Adaptive, AnyOf, simple_triggers

META = "interval"  # where it stands in a commit's metadata
_WORTH_SAYING = 0.2  # change of the interval, as a share
_STEPS = 64  # that are remembered of each kind
_FEW = 3  # steps of which a median says little


class Learner:
    """Knows the costs and failures of a run.

    Args:
        in_flight: captures that may be pending.
        clock: seconds, ever growing; the one of the captures.

    Attributes:
        known: what was learned.
    """

    def __init__(self, observer: Observer, in_flight: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._observer, self._in_flight = observer, in_flight
        self._ran_from = clock()
        self.known = Interval(devices=_devices(), limits=Limits(in_flight=in_flight))
        self._busy: deque[float] = deque(maxlen=_STEPS)
        self._idle: deque[float] = deque(maxlen=_STEPS)
        self._said_s: float | None = None
        self._seen = 0  # snapshots of this process
        self._first_is_all = False  # whether nothing but the first one of them is known of costs

    def stepped(self, seconds: float, busy: bool) -> None:
        """Take note of a step that took so long, and whether a snapshot was written meanwhile.  Cost: 0.1 us."""
        (self._busy if busy else self._idle).append(seconds)

    def snapshotted(self, captured_at: float, blocking_s: float, background_s: float) -> None:
        """Take note of a snapshot that became durable.

        Args:
            captured_at: when its capture began.
            blocking_s: that training stood still.  background_s: from the capture until it was durable.
        """
        self._seen += 1
        if self._seen == 1 and self.known.blocking_s is not None:
            blocking_s = self.known.blocking_s  # the first capture of a process also makes its buffer
        elif self._seen == 2 and self._first_is_all:
            self.known = replace(self.known, blocking_s=None)
        self._first_is_all = self.known.blocking_s is None
        slowdown = None  # the median, because an evaluation or a stalled loader now and then is no slowdown
        if min(len(self._busy), len(self._idle)) >= _FEW:
            slowdown = slowdown_of(median(self._busy), 1, median(self._idle), 1)
        self._busy.clear()
        ran_s = max(0.0, captured_at - self._ran_from)
        self._ran_from = max(captured_at, self._ran_from)
        self.known = self.known.snapshotted(
            max(0.0, blocking_s), max(0.0, background_s), ran_s=ran_s, slowdown=slowdown
        )

    def resumed(self, meta: Mapping[str, object], ending: Ending | None, now: float) -> None:
        """Go on from what a commit says.

        Args:
            meta: of the commit.
            ending: how the run that made it ended; None where it is this one, which went back.
            now: on the clock of the captures.
        """
        said = meta.get(META)
        if isinstance(said, Mapping) and ending is not None:
            try:
                known = Interval.from_dict(said, self.known.limits)
                self.known = replace(known, devices=_devices())
            except InvalidInput as error:
                self._observer(Notice("interval-unreadable", f"what was learned before is not used: {error}"))
        if ending is not None:
            self.known = self.known.restarted(failure=ending.lost)
        self._ran_from = now

    def rule(self, trigger: Trigger) -> Trigger:
        """Return a trigger with what is known in the adaptive rules of it; says so when their interval changed."""
        if not any(isinstance(each, Adaptive) for each in simple_triggers(trigger)):
            return trigger
        made = self._taught(trigger)
        adaptive = next(each for each in simple_triggers(made) if isinstance(each, Adaptive))
        said, seconds = self._said_s, adaptive.seconds
        if self.known.blocking_s is not None and (said is None or abs(seconds - said) > _WORTH_SAYING * said):
            self._said_s = seconds
            self._observer(Notice("interval", f"a snapshot {adaptive.known.explain()}"))
        return made

    def meta(self, trigger: Trigger) -> dict[str, object]:
        """Return what a commit says of it: what is known, and what an adaptive rule makes of that."""
        for each in simple_triggers(trigger):
            if isinstance(each, Adaptive):
                return {META: {**self.known.to_dict(), "why": each.known.explain()}}
        return {META: self.known.to_dict()}

    def _taught(self, trigger: Trigger) -> Trigger:
        if isinstance(trigger, AnyOf):
            return AnyOf(tuple(self._taught(each) for each in trigger.triggers))
        if isinstance(trigger, Adaptive):
            limits = replace(trigger.known.limits, in_flight=self._in_flight)
            return Adaptive(replace(self.known, limits=limits))
        return trigger


def _devices() -> int:
    """Return the processes of the run, each with a device of its own."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    return 1
