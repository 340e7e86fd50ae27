"""When a snapshot is due: tables of the rules, and runs that are stopped, resumed and rolled back."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainstore.errors import InvalidInput
from chainstore.policies import (
    Adaptive,
    AnyOf,
    EveryBatches,
    EveryEpoch,
    EverySeconds,
    EverySteps,
    Interval,
    Moment,
    OnBest,
    Progress,
    Signal,
    Trigger,
    WhenDurable,
    as_trigger,
    bests_after,
)


def moments(trigger: Trigger, run: list[Progress]) -> list[tuple[Progress, str]]:
    """Play a run in which whatever is due is captured at once, and return what was."""
    last, best, found = None, {}, []
    for progress in run:
        seen = replace(progress, last=last, best=best)
        reason = trigger.due(seen)
        if reason is not None:
            last = Moment(progress.step, progress.now, progress.batch, progress.epoch)
            best = bests_after(best, progress.metrics, trigger)
            found.append((seen, reason))
    return found


def steps(trigger: Trigger, run: list[Progress]) -> list[int]:
    return [progress.step for progress, _ in moments(trigger, run)]


def walk(count: int, seconds: float = 1.0, **more: Any) -> list[Progress]:
    return [Progress(step, step * seconds, **more) for step in range(1, count + 1)]


EPOCHS = [Progress(10 * epoch + b + 1, 0.0, batch=b, epoch=epoch) for epoch in range(4) for b in range(10)]
LOSSES = [5.0, 4.0, 4.5, float("nan"), 3.9, 3.0, 3.0]

TABLE = [
    ("multiples of steps", EverySteps(10), walk(35), [10, 20, 30]),
    ("every step", EverySteps(1), walk(3), [1, 2, 3]),
    ("a multiple that a sparse loop steps over", EverySteps(10), walk(40)[6::7], [14, 21, 35]),
    ("seconds, the first at once", EverySeconds(10), walk(30, 1.5), [1, 8, 15, 22, 29]),
    ("multiples of batches in each epoch", EveryBatches(4), EPOCHS[:20], [5, 9, 15, 19]),
    ("batches where calls name none", EveryBatches(4), walk(20), []),
    ("the first call of an epoch", EveryEpoch(), EPOCHS, [11, 21, 31]),
    ("every second epoch", EveryEpoch(2), EPOCHS, [21]),
    ("epochs where calls name none", EveryEpoch(), walk(20), []),
    (
        "what is best",
        OnBest("loss"),
        [Progress(n, 0.0, metrics={"loss": x}) for n, x in enumerate(LOSSES)],
        [0, 1, 4, 5],
    ),
    (
        "most",
        OnBest("loss", "max"),
        [Progress(n, 0.0, metrics={"loss": -x}) for n, x in enumerate(LOSSES)],
        [0, 1, 4, 5],
    ),
    (
        "best by enough",
        OnBest("loss", min_delta=0.5),
        [Progress(n, 0.0, metrics={"loss": x}) for n, x in enumerate(LOSSES)],
        [0, 1, 5],
    ),
    (
        "best after patience, noticed later if it still is",
        OnBest("loss", patience=3),
        [Progress(n, 0.0, metrics={"loss": 9.0 - n}) for n in range(8)],
        [0, 3, 6],
    ),
    ("a metric that calls lack", OnBest("loss"), walk(5, metrics={"accuracy": 1.0}), []),
    ("when nothing is under way", WhenDurable(), [replace(p, pending=p.step % 4) for p in walk(9)], [4, 8]),
    ("when asked", Signal(), [replace(p, signalled="SIGUSR1" if p.step == 3 else "") for p in walk(5)], [3]),
    ("any of several", AnyOf((EverySteps(10), EverySeconds(4))), walk(12), [1, 5, 9, 10]),
]


@pytest.mark.parametrize(("trigger", "run", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_a_trigger_is_due_at(trigger: Trigger, run: list[Progress], expected: list[int]) -> None:
    assert steps(trigger, run) == expected


def test_a_combination_tells_every_reason_that_holds() -> None:
    rules = as_trigger([EverySteps(10), [OnBest("loss"), Signal()]])
    progress = Progress(10, 0.0, metrics={"loss": 0.5}, signalled="SIGUSR1", last=Moment(9, 0.0))
    assert rules.due(progress) == "step 10 (every 10 steps); best loss so far: 0.5; SIGUSR1"
    assert rules.due(replace(progress, step=9, metrics={}, signalled="")) is None


def test_other_snapshots_do_not_move_multiples_of_steps() -> None:
    rules = as_trigger([EverySteps(10), Signal()])
    run = [replace(p, signalled="asked" if p.step == 17 else "") for p in walk(30)]
    assert steps(rules, run) == [10, 17, 20, 30]


@pytest.mark.parametrize("trigger", [EverySteps(10), EveryEpoch(), EveryBatches(4)])
def test_a_run_that_went_back_does_not_wait_until_it_is_where_it_was(trigger: Trigger) -> None:
    back = Progress(12, 0.0, batch=1, epoch=1, last=Moment(999, 0.0, 9, 99))
    assert trigger.due(back) is not None or isinstance(trigger, EveryBatches)
    again = [replace(p, last=None) for p in EPOCHS]
    assert steps(trigger, again)


def test_a_clock_that_went_back_does_not_silence_seconds() -> None:
    for trigger in (EverySeconds(60), Adaptive()):
        assert trigger.due(Progress(5, 10.0, last=Moment(4, 1e9))) is not None


def test_the_same_step_asked_twice_is_not_due_twice() -> None:
    here = Progress(100, 50.0, batch=10, epoch=2, last=Moment(100, 50.0, 10, 2))
    for trigger in (EverySteps(1), EverySteps(100), EveryBatches(10), EveryEpoch(), EverySeconds(1), WhenDurable()):
        assert trigger.due(here) is None, trigger


def test_metrics_may_be_scalars_of_any_library() -> None:
    progress = Progress(1, 0.0, metrics={"loss": np.float32(0.5)}, best={"loss:min": 0.6})
    assert OnBest("loss").due(progress) == "best loss so far: 0.5"
    assert bests_after({}, progress.metrics, OnBest("loss")) == {"loss:min": 0.5}


def test_the_best_is_that_of_any_snapshot_whatever_it_was_taken_for() -> None:
    rules = as_trigger([EverySteps(2), OnBest("loss", patience=100)])
    assert bests_after({"loss:min": 3.0}, {"loss": 2.0}, rules) == {"loss:min": 2.0}
    assert bests_after({"loss:min": 3.0}, {"loss": float("nan")}, rules) == {"loss:min": 3.0}
    assert bests_after({"loss:min": 3.0}, {}, rules) == {"loss:min": 3.0}


def test_adaptive_takes_the_first_at_once_and_then_waits_as_long_as_its_interval_says() -> None:
    rule = Adaptive(Interval(devices=1024).snapshotted(1.0, 5.0, ran_s=6000))
    assert rule.due(Progress(1, 0.0)) == "first snapshot"
    assert rule.seconds == rule.known.seconds > 100
    assert rule.due(Progress(2, rule.seconds - 0.01, last=Moment(1, 0.0))) is None
    assert rule.due(Progress(2, rule.seconds, last=Moment(1, 0.0))) == f"adaptive: {rule.known.explain()}"


WRONG = [
    lambda: EverySteps(0),
    lambda: EverySteps(-5),
    lambda: EverySteps(2.5),  # type: ignore[arg-type]
    lambda: EverySteps(True),
    lambda: EverySteps("100"),  # type: ignore[arg-type]
    lambda: EveryBatches(0),
    lambda: EveryEpoch(0),
    lambda: EverySeconds(0),
    lambda: EverySeconds(-1),
    lambda: EverySeconds(float("nan")),
    lambda: EverySeconds(float("inf")),
    lambda: EverySeconds("30m"),  # type: ignore[arg-type]
    lambda: OnBest(""),
    lambda: OnBest("loss", "least"),  # type: ignore[arg-type]
    lambda: OnBest("loss", min_delta=-1),
    lambda: OnBest("loss", patience=-1),
    lambda: AnyOf(()),
    lambda: as_trigger([]),
    lambda: as_trigger("adaptive"),  # type: ignore[arg-type]
    lambda: as_trigger(100),  # type: ignore[arg-type]
    lambda: as_trigger([EverySteps(1), None]),  # type: ignore[list-item]
]


@pytest.mark.parametrize("make", WRONG)
def test_nonsense_is_refused_when_it_is_made(make: Any) -> None:
    with pytest.raises(InvalidInput):
        make()


def test_a_number_of_steps_may_be_one_of_numpy() -> None:
    assert EverySteps(np.int64(5)) == EverySteps(5) and type(EverySteps(np.int64(5)).n) is int


@given(st.integers(1, 50), st.lists(st.integers(1, 40), max_size=60), st.randoms(use_true_random=False))
def test_no_multiple_of_steps_is_ever_missed_by_more_than_one_call(n: int, strides: list[int], random: Any) -> None:
    """However a loop strides, and wherever it is resumed from its last snapshot: of each multiple one snapshot."""
    rule, step, last = EverySteps(n), 0, None
    for stride in strides:
        before, step = step, step + stride
        due = rule.due(Progress(step, 0.0, last=last)) is not None
        assert due == (step // n > before // n)
        if due:
            last = Moment(step, 0.0)
        elif last is not None and random.random() < 0.1:  # killed: goes on from the last snapshot
            step = last.step
