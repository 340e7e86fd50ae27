"""How often a snapshot pays: the formula, its limits, what is learned of failures, and how it travels."""

import json
from dataclasses import replace
from itertools import pairwise
from math import isclose, sqrt
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainstore.errors import InvalidInput
from chainstore.policies import Interval, Limits, slowdown_of
from chainstore.policies.failures import PRIOR_HOURS, FailureRate
from chainstore.policies.interval import span_text

WIDE = Limits(max_lost_s=1e9, max_overhead=1.0, in_flight=1000)


OLD = FailureRate().ran(1e4)  # hours without a failure


def measured(devices: int = 1, blocking_s: float = 1.0, limits: Limits = WIDE, **more: Any) -> Interval:
    return Interval(devices=devices, blocking_s=blocking_s, limits=limits, **more)


def lived(gaps_s: list[float], devices: int = 1) -> FailureRate:
    """Return what is known after failures with these gaps."""
    rate = FailureRate()
    for gap in gaps_s:
        hours = gap / 3600 * devices
        rate = rate.ran(hours).failed(hours)
    return rate


def hours_between(rate: FailureRate, devices: int = 1) -> float:
    return 1 / rate.per_hour(devices)


def test_the_interval_is_that_of_young_and_daly() -> None:
    known = measured(1024, 2.0, recovery_s=300.0, failures=OLD.ran(1e5))
    mean_s = known.mean_time_between_failures_s
    assert isclose(known.seconds, 2 + sqrt(2 * (mean_s + 300) * 2 + 4)) and known.seconds == known.optimal_s


def test_a_cost_is_the_copy_and_the_slowdown_while_it_is_written() -> None:
    known = Interval().snapshotted(0.4, 20.0, ran_s=60, slowdown=0.05)
    assert isclose(known.cost_s, 1.4)
    later = known.snapshotted(0.4, 20.0, ran_s=60)  # nothing was seen of a slowdown: the last one stands
    assert isclose(later.cost_s, 1.4)
    assert known.cost_s < known.snapshotted(0.8, 20.0, ran_s=60).cost_s < 1.8  # one alone does not decide


def test_the_slowdown_is_how_much_longer_steps_take() -> None:
    assert slowdown_of(11.0, 100, 10.0, 100) == pytest.approx(0.1)
    assert slowdown_of(9.0, 100, 10.0, 100) == 0.0
    assert slowdown_of(9.0, 0, 10.0, 100) is None and slowdown_of(9.0, 1, 0.0, 0) is None


def test_before_anything_is_known_a_prior_says_how_often_hardware_fails() -> None:
    assert 50_600 < PRIOR_HOURS < 50_800
    for devices in (1, 8, 1024, 16_384, 10**6):
        assert isclose(hours_between(FailureRate(), devices), PRIOR_HOURS / devices)


def test_no_failures_make_failures_rarer_and_never_impossible() -> None:
    before = hours_between(FailureRate())
    for hours in (1, 100, 1e4, 1e6, 1e9):
        after = hours_between(FailureRate().ran(hours))
        assert before < after < 10 * (PRIOR_HOURS + hours)
        before = after


@pytest.mark.parametrize("mean_s", [600.0, 10_800.0, 864_000.0])
@pytest.mark.parametrize("devices", [1, 64, 4096])
def test_the_mean_time_between_failures_is_learned_from_few(mean_s: float, devices: int) -> None:
    few = hours_between(lived([mean_s] * 5, devices), devices) * 3600
    many = hours_between(lived([mean_s] * 200, devices), devices) * 3600
    assert mean_s / 2 < few < 2 * mean_s and isclose(many, mean_s, rel_tol=0.05)


def test_what_is_learned_on_some_devices_holds_for_more() -> None:
    rate = lived([3600.0] * 100, devices=8)
    assert isclose(hours_between(rate, 8), 1, rel_tol=0.05) and isclose(hours_between(rate, 16), 0.5, rel_tol=0.05)


def test_what_is_long_ago_is_forgotten() -> None:
    rate = lived([864_000.0] * 100 + [3600.0] * 10)
    assert hours_between(rate) > 150 and 1 / rate.lately_per_hour(1) < 24  # at first only the short memory follows
    assert isclose(hours_between(lived([864_000.0] * 100 + [3600.0] * 600)), 1, rel_tol=0.1)
    calm = lived([3600.0] * 100).ran(24 * 100)
    assert hours_between(calm) > 24  # and a quiet time needs no failure to be believed


def test_a_burst_shortens_the_interval_and_quiet_brings_it_back() -> None:
    usual = measured(failures=lived([864_000.0] * 20), since_restart_s=400_000.0)
    burst = usual
    for _ in range(6):
        burst = burst.restarted(lost_s=300.0)
    assert burst.seconds < usual.seconds / 2
    seconds = [burst.seconds]
    for _ in range(40):
        burst = burst.snapshotted(1.0, 0.0, ran_s=43_200.0)
        seconds.append(burst.seconds)
    assert seconds == sorted(seconds) and seconds[-1] > usual.seconds * 0.7


def test_heaps_of_failures_are_told_from_failures_without_memory() -> None:
    random = Random(5)
    heaps = lived([random.weibullvariate(7900, 0.6) for _ in range(200)])
    chance = lived([random.expovariate(1e-4) for _ in range(200)])
    assert heaps.evidence > 1 > -1 > chance.evidence
    assert heaps.ageing(0.01) > 2 > 1.2 > chance.ageing(0.01) >= 1
    assert heaps.ageing(1.0) == chance.ageing(1.0) == 1.0
    assert replace(chance, evidence=-1e308).ageing(1e-9) == 1.0


def test_after_a_restart_the_interval_begins_shorter_and_grows_back() -> None:
    random = Random(5)
    known = measured(failures=replace(lived([random.weibullvariate(7900, 0.6) for _ in range(200)])))
    known = known.restarted(lost_s=1.0)
    found = [known.seconds]
    for _ in range(200):
        known = known.snapshotted(1.0, 0.0, ran_s=known.seconds)
        found.append(known.seconds)
    assert found[0] < 0.75 * found[-1]
    assert all(before <= after for before, after in pairwise(found))


def test_a_restart_is_counted_and_one_that_saved_first_is_no_failure() -> None:
    known = measured(8, last_ran_s=600.0, failures=OLD)
    planned = known.restarted(failure=False)
    assert planned.restarts == 1 and planned.failures == known.failures and planned.seconds == known.seconds
    failed = known.restarted()
    assert failed.restarts == 1 and failed.seconds < known.seconds
    assert isclose(
        failed.failures.recent_hours, 0.7 * (1e4 + 8 * 300 / 3600)
    )  # half an interval was lost, where nobody knows
    assert known.restarted(recovery_s=900.0).recovery_s == 900.0
    assert 60 < known.restarted(recovery_s=100.0).restarted(recovery_s=200.0).recovery_s < 200


def test_limits_hold_and_say_that_they_do() -> None:
    calm = measured(failures=OLD, limits=Limits(max_lost_s=600.0))
    assert calm.seconds == 600 < calm.optimal_s and "more than 600 s of work is not to be lost" in calm.explain()
    wild = measured(blocking_s=10.0, failures=lived([600.0] * 50), limits=Limits(max_overhead=0.02))
    assert wild.seconds == 500 > wild.optimal_s and "more than 2 % of the time" in wild.explain()
    both = replace(wild, limits=Limits(max_lost_s=60.0, max_overhead=0.02))
    assert both.seconds == 60.0  # lost work wins
    slow = replace(both, background_s=300.0, limits=Limits(60.0, 0.02, in_flight=2))
    assert slow.seconds == 150.0 and "one takes 300 s to be durable" in slow.explain()


def test_a_young_run_takes_snapshots_closer_and_fewer_as_it_lives() -> None:
    known, found = measured(), []
    for _ in range(100):
        known = known.snapshotted(1.0, 0.0, ran_s=known.seconds)
        found.append(known.seconds)
    assert found == sorted(found) and found[0] < 60 and found[-1] > 900
    assert measured(8, failures=OLD.ran(1e5)).seconds == measured(8, failures=OLD.ran(1e5)).optimal_s


def test_until_a_snapshot_is_measured_one_is_taken_every_minute() -> None:
    assert Interval().seconds == 60.0 and Interval(limits=Limits(max_lost_s=10.0)).seconds == 10.0
    assert Interval().explain() == "every 60 s until a snapshot shows what one costs"


def test_a_snapshot_that_costs_nothing_is_not_taken_without_end() -> None:
    assert Interval().snapshotted(0.0, 0.0, ran_s=1.0).seconds > 1
    assert Interval(failures=OLD).snapshotted(0.0, 0.0, ran_s=1.0).seconds > 60


def test_it_explains_itself_in_one_sentence_with_numbers() -> None:
    known = Interval(devices=1024).snapshotted(0.4, 20.0, ran_s=86_400, slowdown=0.03)
    assert known.explain() == (
        "every 17.6 min: a snapshot costs 1 s (0.4 s standing still and 20 s at 3 % slower steps), "
        "failures come every 6.47 d"
    )
    burst = measured(failures=lived([86_400.0] * 20 + [60.0] * 5), since_restart_s=0.0)
    assert "after the last one" in burst.explain()
    assert "while the run is young" in Interval().snapshotted(0.4, 0.0, ran_s=60).explain()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0004, "0.0004 s"), (312.4, "312 s"), (1800, "30 min"), (18_360, "5.1 h"), (1.1e6, "12.7 d")],
)
def test_lengths_of_time_are_told_with_three_digits(seconds: float, text: str) -> None:
    assert span_text(seconds) == text


times = st.floats(0, 1e8)
events = st.one_of(
    st.tuples(times, times, times, st.none() | st.floats(0, 10)).map(lambda e: ("snapshotted", e)),
    st.tuples(st.none() | times, st.none() | times, st.booleans()).map(lambda e: ("restarted", e)),
)


@given(st.lists(events, max_size=30), st.integers(1, 10**6))
def test_whatever_happens_the_interval_is_within_its_limits_and_travels(story: list[Any], devices: int) -> None:
    known = Interval(devices=devices)
    for kind, event in story:
        if kind == "snapshotted":
            known = known.snapshotted(event[0], event[1], ran_s=event[2], slowdown=event[3])
        else:
            known = known.restarted(lost_s=event[0], recovery_s=event[1], failure=event[2])
        assert 0 < known.seconds <= max(1800.0, known.background_s)
        assert known.optimal_s > 0 and known.mean_time_between_failures_s > 0 and known.explain()
    data = json.loads(json.dumps(known.to_dict()))
    assert Interval.from_dict(data) == known
    assert len(json.dumps(data)) < 700


def test_a_state_of_another_version_is_read_as_far_as_it_goes() -> None:
    known = Interval.from_dict({"devices": 4, "blocking_s": 2, "of a later version": "?"}, Limits(max_lost_s=60))
    assert known == Interval(devices=4, blocking_s=2, limits=Limits(max_lost_s=60))
    assert Interval.from_dict({}) == Interval()


@pytest.mark.parametrize(
    "data",
    [
        {"devices": 0},
        {"devices": "8"},
        {"blocking_s": -1},
        {"failures_hours": float("nan")},
        {"failures_count": [1]},
        {"failures_hours": 1e308},
        {"failures_evidence": -1e308},
        {"restarts": None},
        {"slowdown": True},
        {"recovery_s": float("inf")},
    ],
    ids=str,
)
def test_a_state_that_makes_no_sense_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Interval.from_dict(data)


WRONG = [
    lambda: Limits(max_lost_s=0),
    lambda: Limits(max_lost_s=float("inf")),
    lambda: Limits(max_overhead=0),
    lambda: Limits(max_overhead=1.1),
    lambda: Limits(in_flight=0),
    lambda: Interval(devices=0),
    lambda: Interval().snapshotted(-1, 0, ran_s=0),
    lambda: Interval().snapshotted(0, float("nan"), ran_s=0),
    lambda: Interval().restarted(lost_s=-1),
    lambda: Interval().restarted(recovery_s=float("inf")),
]


@pytest.mark.parametrize("make", WRONG)
def test_nonsense_is_refused(make: Any) -> None:
    with pytest.raises(InvalidInput):
        make()
