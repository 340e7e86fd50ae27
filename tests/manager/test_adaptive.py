"""An adaptive manager learns from what snapshots cost and from how runs end, and takes it along."""

from pathlib import Path

import pytest
import torch

from chainstore.errors import InvalidInput
from chainstore.manager.course import Course
from chainstore.manager.endings import Ending
from chainstore.manager.learning import Learner
from chainstore.manager.manager import SnapshotManager
from chainstore.observe import Event, Notice, silent
from chainstore.policies import Adaptive, AnyOf, EverySteps, Interval, Limits, parse_interval
from chainstore.repository import init
from chainstore.repository import open as open_repository
from tests.manager.runs import Run


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def known_of(manager: SnapshotManager) -> Interval:
    return manager._insight.learner.known


def test_what_was_measured_decides_and_is_said_once(tmp_path: Path) -> None:
    clock, seen = Clock(), []
    learner = Learner(seen.append, 1, clock)
    trigger = learner.rule(parse_interval("adaptive"))
    assert isinstance(trigger, Adaptive) and trigger.seconds == 60 and not seen
    for _ in range(10):
        clock.now += 100
        learner.snapshotted(clock.now, 1.0, 5.0)
        trigger = learner.rule(trigger)
    assert learner.known.failures.hours == pytest.approx(1000 / 3600)
    assert learner.known.blocking_s == pytest.approx(1.0) and learner.known.background_s == pytest.approx(5.0)
    assert isinstance(trigger, Adaptive) and trigger.seconds == learner.known.seconds > 100
    texts = [event.text for event in seen if isinstance(event, Notice) and event.code == "interval"]
    assert 1 <= len(texts) < 10 and "a snapshot every" in texts[-1]
    before = len(seen)
    learner.rule(trigger)
    assert len(seen) == before


def test_the_first_capture_of_a_process_does_not_count_for_long() -> None:
    clock = Clock()
    learner = Learner(silent, 1, clock)
    for cost in (9.0, 0.1, 0.1):
        clock.now += 100
        learner.snapshotted(clock.now, cost, 1.0)
    assert learner.known.blocking_s == pytest.approx(0.1)
    again = Learner(silent, 1, clock)
    again.resumed({"interval": learner.known.to_dict()}, Ending(), clock.now)
    again.snapshotted(clock.now + 100, 9.0, 1.0)
    assert again.known.blocking_s == pytest.approx(0.1)


def test_slower_steps_while_one_is_written_are_a_cost_and_a_long_evaluation_is_none() -> None:
    clock = Clock()
    learner = Learner(silent, 1, clock)
    for number in range(20):
        learner.stepped(1.0 if number != 7 else 900.0, busy=False)
        learner.stepped(1.5 if number != 9 else 900.0, busy=True)
    clock.now += 100
    learner.snapshotted(clock.now, 0.2, 10.0)
    assert learner.known.slowdown == pytest.approx(0.5)
    assert learner.known.cost_s == pytest.approx(5.2)


def test_limits_of_a_rule_stay_and_other_rules_are_left_alone() -> None:
    clock = Clock()
    learner = Learner(silent, 3, clock)
    learner.snapshotted(clock.now + 100, 100.0, 5.0)
    both = learner.rule(parse_interval("500 steps or adaptive:lost=2m:overhead=50%"))
    assert isinstance(both, AnyOf) and both.triggers[0] == EverySteps(500)
    adaptive = both.triggers[1]
    assert isinstance(adaptive, Adaptive) and adaptive.known.limits == Limits(120.0, 0.5, 3)
    assert adaptive.seconds == 120
    assert "lost" in str(learner.meta(both)["interval"]["why"])  # type: ignore[index]
    assert "why" not in learner.meta(EverySteps(3))["interval"]  # type: ignore[operator]


def test_steps_are_timed_and_the_stall_is_no_step(tmp_path: Path) -> None:
    clock, timed = Clock(), []
    learner = Learner(silent, 1, clock)
    learner.stepped = lambda seconds, busy: timed.append((seconds, busy))  # type: ignore[method-assign]
    with init(tmp_path / "run", encrypt=False) as repo:
        course = Course(repo, EverySteps(10), silent, learner, clock)
        for step in range(1, 4):
            clock.now += 2
            course.due(step, None, None, None, 0)
        clock.now += 50  # the stall
        course.captured(3, None, None)
        for pending, took in ((1, 3), (1, 3), (0, 5), (0, 2)):
            clock.now += took
            course.due(4, None, None, None, pending)
    assert timed == [(2, False), (2, False), (3, True), (3, True), (2, False)]


def test_what_was_learned_travels(tmp_path: Path) -> None:
    run, seen = Run(), list[Event]()
    with SnapshotManager(tmp_path / "run", interval="adaptive:lost=50ms", mode="thread", when_full="wait") as manager:
        for step in range(1, 1000):
            run.step()
            manager.step(step, run.model, run.optimizer)
            if manager.stats().durable >= 4:
                break
        manager.wait()
        learned = known_of(manager)
        assert learned.blocking_s is not None and learned.failures.hours > 0
        manager.save(step + 1, run.model, run.optimizer)
        manager._shipping.say_ended("")  # as if killed now
        manager._insight.leave = lambda words: None  # type: ignore[method-assign]
    with open_repository(tmp_path / "run") as repo:
        meta = repo.get_commit("main").meta
        assert Interval.from_dict(meta["interval"]).blocking_s == pytest.approx(learned.blocking_s)  # type: ignore[arg-type]
        assert "every" in meta["interval"]["why"]  # type: ignore[index]
    with SnapshotManager(tmp_path / "run", interval="adaptive", mode="thread", observer=seen.append) as manager:
        assert manager.resume(run.model, run.optimizer) == step + 1
        again = known_of(manager)
        assert again.blocking_s == pytest.approx(learned.blocking_s)
        assert again.failures.count > learned.failures.count and again.restarts == 1
        assert manager._course.trigger.known.failures == again.failures  # type: ignore[attr-defined]
        assert any(isinstance(event, Notice) and event.code == "interval" for event in seen)
    with SnapshotManager(tmp_path / "run", interval="adaptive", mode="thread") as manager:
        manager.resume(run.model, run.optimizer)
        # closed in good order, and nothing was saved since: one restart more, of which that one was no failure
        assert known_of(manager).failures.count == 0 and known_of(manager).restarts == 1


def test_what_cannot_be_read_is_not_used(tmp_path: Path) -> None:
    seen: list[Event] = []
    learner = Learner(seen.append, 1)
    learner.resumed({"interval": {"blocking_s": -5}}, Ending("unknown", True), 0.0)
    assert learner.known.blocking_s is None and learner.known.restarts == 1
    assert [event.code for event in seen if isinstance(event, Notice)] == ["interval-unreadable"]
    with pytest.raises(InvalidInput):
        Interval.from_dict({"blocking_s": -5})


def test_a_run_that_goes_back_is_no_interruption(tmp_path: Path) -> None:
    run = Run()
    with SnapshotManager(tmp_path / "run", interval=1, mode="sync") as manager:
        manager.resume(run.model)
        manager.step(1, run.model)
        count = known_of(manager).failures.count
        torch.nn.init.zeros_(run.model[0].weight)
        assert manager.resume(run.model) == 1
        assert known_of(manager).failures.count == count and known_of(manager).restarts == 0
