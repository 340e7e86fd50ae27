"""What every trigger must do; see `policies.progress`."""

from collections.abc import Iterator
from random import Random
from time import perf_counter_ns

from chainstore.policies.progress import Moment, Progress, Trigger

GUARD_NS = 20_000  # of one call where nothing is due: ten times what it may take, so that only a slip is caught


class TriggerConformance:
    """Tests of one trigger: asked at every step, it only looks."""

    def make(self) -> Trigger:
        """Return it."""
        raise NotImplementedError

    def due(self) -> Progress:
        """Return a moment at which it is due."""
        raise NotImplementedError

    def not_due(self) -> Progress:
        """Return a moment at which it is not: after a snapshot of the same step, unless it says otherwise."""
        return Progress(step=1000, now=5000.0, last=Moment(step=1000, time=5000.0))

    def run(self) -> Iterator[Progress]:
        """Yield a run: fresh, sparse, with all there is to see, gone back, and with odd values."""
        random = Random(1)
        yield Progress(step=0, now=0.0)
        yield Progress(step=1, now=0.5)
        for step in range(1, 400, 3):
            metrics = {"loss": random.choice([random.random(), float("nan"), float("inf")])} if step % 4 else {}
            last = Moment(step - random.randrange(1, 200), step - 0.5, step % 50, step // 50) if step % 5 else None
            signalled = "SIGUSR1" if step % 7 == 0 else ""
            yield Progress(step, float(step), step % 50, step // 50, metrics, last, step % 2, signalled)
        yield Progress(step=5, now=7.0, last=Moment(step=900, time=6.0, epoch=4, batch=3))  # rolled back
        yield Progress(step=5, now=-7.0, last=Moment(step=4, time=6.0))  # a clock that went back

    def test_it_is_due_with_a_reason_when_it_should_be(self) -> None:
        reason = self.make().due(self.due())
        assert isinstance(reason, str) and reason and reason == reason.strip() and "\n" not in reason

    def test_it_is_not_due_when_it_should_not_be(self) -> None:
        assert self.make().due(self.not_due()) is None

    def test_it_says_a_reason_or_none_whatever_it_sees(self) -> None:
        trigger = self.make()
        for progress in self.run():
            reason = trigger.due(progress)
            assert reason is None or (isinstance(reason, str) and reason), progress

    def test_it_keeps_nothing(self) -> None:
        """Asked twice, in another order, or by one that was just made, it says the same: a run can be resumed."""
        trigger, run = self.make(), list(self.run())
        first = [trigger.due(progress) for progress in run]
        assert [trigger.due(progress) for progress in run] == first
        assert [trigger.due(progress) for progress in reversed(run)] == first[::-1]
        assert [self.make().due(progress) for progress in run] == first

    def test_it_takes_no_time_when_it_is_not_due(self) -> None:
        """The best of many turns, so that other work on the machine does not count."""
        trigger, progress = self.make(), self.not_due()
        best = GUARD_NS * 1000
        for _ in range(200):
            start = perf_counter_ns()
            for _ in range(100):
                trigger.due(progress)
            best = min(best, (perf_counter_ns() - start) // 100)
        assert best < GUARD_NS, f"{best} ns"
