"""Saving: one snapshot, from the objects of a call to a capture that is on its way; on one rank or on all of them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, NamedTuple

from chainstore.errors import ChainError
from chainstore.manager.course import Course
from chainstore.manager.following import Following
from chainstore.manager.gathering import Tracked, gather
from chainstore.manager.insight import Insight
from chainstore.manager.interrupts import Interrupts
from chainstore.manager.shipping import Shipping
from chainstore.manager.together import Together
from chainstore.policies.triggers import quiet_steps


class Call(NamedTuple):
    """What a call of `step` or `save` says; see there."""

    step: int
    objects: Sequence[Any]
    named: Mapping[str, Any]
    epoch: int | None
    batch: int | None
    metrics: Mapping[str, object] | None


class Saver:
    """Makes the snapshots of a manager.

    Args:
        lock: held while a state is looked at.
        wait_seconds: for what is on its way when a signal announced the end.
    """

    def __init__(
        self,
        course: Course,
        shipping: Shipping | Following,
        insight: Insight,
        interrupts: Interrupts,
        tracked: Tracked,
        together: Together | None,
        lock: AbstractContextManager[object],
        wait_seconds: float,
    ) -> None:
        self._course, self._shipping, self._insight = course, shipping, insight
        self._interrupts, self._tracked, self._together = interrupts, tracked, together
        self._lock, self._wait_seconds = lock, wait_seconds

    def step_together(self, together: Together, call: Call) -> bool:
        """Do what `SnapshotManager.step` does where several ranks do it: rank 0 says what is due."""
        reason, error, meets = None, None, together.meets(call.step, call.epoch)
        try:
            if meets:
                self._shipping.look()
            if together.leads:
                self._insight.policy.look()
                pending = self._shipping.pending
                reason = self._course.due(call.step, call.batch, call.epoch, call.metrics, pending)
            if meets and reason is not None and not self._shipping.has_room(call.step, False):
                reason = None
        except ChainError as failed:
            if not meets:
                raise
            error = failed  # raised by `meet`, as the others wait there
        if not meets:
            return False
        met = together.meet(
            call.step,
            call.epoch,
            due=reason is not None,
            signalled=bool(self._interrupts.signalled),
            error=error,
            quiet=quiet_steps(self._course.trigger, call.step),
        )
        if met.signalled:
            return self.last_step(call)
        self._insight.goes_on()
        return met.due and self.snapshot(call, reason or "")

    def last_step(self, call: Call) -> bool:
        """Make the last snapshot, wait until it is durable, and pass the signal on that announced the end."""
        self._shipping.drain(self._wait_seconds)
        done = self.snapshot(call, "signal")
        self._shipping.drain(self._wait_seconds)
        self._insight.ends(saved=done)
        if self._together is not None:
            self._together.barrier()  # the end of one rank is the end of all, and rank 0 has just got done
        signalled = self._interrupts.signalled
        if signalled:
            self._interrupts.pass_on()
        if signalled or self._together is None:  # else another rank may be about to end
            self._insight.goes_on()  # whoever asked wanted a snapshot, not the end
        return done

    def snapshot(self, call: Call, why: str) -> bool:
        """Capture the objects of a call and what is tracked; return whether that was done."""
        step, epoch = call.step, call.epoch
        objects, named = self._tracked.with_call(call.objects, call.named)
        done = self.state(
            lambda: gather(objects, named, step=step, epoch=epoch), step, epoch, call.metrics, why, objects, named
        )
        if done and (self._together is None or self._together.leads):
            self._course.captured(step, epoch, call.metrics)
        return done

    def state(
        self,
        make: Callable[[], dict[str, Any]],
        step: int | None,
        epoch: int | None,
        metrics: Mapping[str, object] | None,
        why: str,
        objects: Sequence[Any] = (),
        named: Mapping[str, Any] = MappingProxyType({}),
    ) -> bool:
        """Capture the state that `make` returns, of these objects, and let it become durable."""

        def ship(state: dict[str, Any]) -> int:
            shipping = self._shipping
            assert isinstance(shipping, Shipping)
            if step is not None:
                self._course.check_restart(shipping, step)
            meta = {**self._course.meta(why), **self._insight.meta()}
            if self._together is not None:
                meta["world_size"] = self._together.size
            at_once = why in ("save", "signal")
            done = shipping.ship(state, step=step, epoch=epoch, metrics=metrics, meta=meta, why=why, at_once=at_once)
            return shipping.number if done else 0

        with self._lock:
            if self._together is not None:
                return self._together.snapshot(step, make, objects, named, ship)
            return bool(ship(make()))
