"""Which snapshots a chain keeps: tables of the rules, and what holds whatever the rules are."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainstore.errors import InvalidInput
from chainstore.ids import ObjectId
from chainstore.model.commit import Commit, Stats
from chainstore.policies import Best, Retention

NOW = datetime(2026, 3, 31, 12, tzinfo=UTC)
CALENDAR = ("hourly", "daily", "weekly", "monthly", "yearly")


@dataclass(frozen=True)
class Made:
    """A commit as a rule sees it."""

    number: int
    time: datetime
    step: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def id(self) -> ObjectId:
        return ObjectId(self.number.to_bytes(32, "big"))


def at(*texts: str) -> list[Made]:
    """Return commits, newest first as in a log, made at these times."""
    return [Made(len(texts) - n, datetime.fromisoformat(text).replace(tzinfo=UTC)) for n, text in enumerate(texts)]


def every(length: timedelta, count: int) -> list[Made]:
    """Return `count` commits, newest first, `length` apart, the newest one just now; step n is the n-th."""
    return [Made(count - n, NOW - n * length, step=count - n) for n in range(count)]


def kept(rule: Retention, commits: list[Made], now: datetime = NOW, **more: Any) -> dict[int, str]:
    return {int.from_bytes(id, "big"): why for id, why in rule.keep(commits, now, **more).items()}


DAYS = at("2026-03-31 09:00", "2026-03-31 08:00", "2026-03-30 23:00", "2026-03-20 10:00", "2026-03-20 09:00")
HOURS, MONTHS = every(timedelta(hours=1), 100), every(timedelta(days=31), 30)

TABLE = [
    ("the newest", Retention(last=2), HOURS, [100, 99]),
    ("all there are where there are fewer", Retention(last=9), DAYS, [5, 4, 3, 2, 1]),
    ("every one for -1", Retention(last=-1), DAYS, [5, 4, 3, 2, 1]),
    ("the newest of each hour", Retention(hourly=3), HOURS, [100, 99, 98]),
    ("the newest of each day that has one", Retention(daily=2), DAYS, [5, 3]),
    ("days without snapshots do not count", Retention(daily=3), DAYS, [5, 3, 2]),
    ("the oldest, where days are left over", Retention(daily=4), DAYS, [5, 3, 2, 1]),
    ("every day for -1, and the oldest", Retention(daily=-1), DAYS, [5, 3, 2, 1]),
    ("ISO weeks", Retention(weekly=2), DAYS, [5, 2]),
    ("months", Retention(monthly=2), at("2026-03-01", "2026-02-28", "2026-02-01", "2025-02-01"), [4, 3]),
    ("years", Retention(yearly=2), at("2026-03-01", "2026-02-28", "2025-12-31", "2025-02-01"), [4, 2]),
    ("a year of ISO weeks ends in January", Retention(weekly=1), at("2027-01-01", "2026-12-28"), [2]),
    ("steps", Retention(every_steps=40), HOURS, [80, 40]),
    ("less than so long before the newest", Retention(within=timedelta(hours=3)), HOURS, [100, 99, 98]),
    ("the oldest", Retention(first=True), HOURS, [1]),
    ("what any rule wants", Retention(last=1, every_steps=50, first=True), HOURS, [100, 50, 1]),
    ("nothing of nothing", Retention(last=3, daily=3, best=Best("loss"), first=True), [], []),
    ("long chains", Retention(yearly=2, monthly=3), MONTHS, [30, 29, 28, 27]),
]


@pytest.mark.parametrize(("rule", "commits", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_a_rule_keeps(rule: Retention, commits: list[Made], expected: list[int]) -> None:
    assert list(kept(rule, commits)) == expected


def test_the_reasons_say_which_rules_want_a_snapshot() -> None:
    rule = Retention(last=1, daily=4, within=timedelta(hours=2), every_steps=2, first=True)
    commits = [replace(commit, step=commit.number) for commit in DAYS]
    assert kept(rule, commits) == {
        5: "last, daily, within 2h",
        4: "within 2h, every 2 steps",
        3: "daily",
        2: "daily, every 2 steps",
        1: "oldest daily, first",
    }


LOSSES = [0.5, float("nan"), 0.1, None, 0.3, 0.1]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Best("loss"), [6]),
        (Best("loss", 2), [6, 3]),
        (Best("loss", 3), [6, 5, 3]),
        (Best("loss", -1), [6, 5, 3, 1]),
        (Best("loss", 1, "max"), [1]),
        (Best("accuracy", 2), []),
    ],
)
def test_the_best_are_those_with_the_metric_and_the_newest_of_equals(rule: Best, expected: list[int]) -> None:
    commits = [
        Made(n, NOW + timedelta(n), metrics={} if loss is None else {"loss": loss}) for n, loss in enumerate(LOSSES, 1)
    ]
    assert list(kept(Retention(best=rule), commits)) == expected


def test_tags_are_kept_by_name_or_pattern() -> None:
    tags = {"v1": HOURS[5].id, "v2": HOURS[9].id, "w1": HOURS[20].id, "elsewhere": ObjectId(bytes(32))}
    assert kept(Retention(tags=("v*",)), HOURS, tags=tags) == {95: "tag v1", 91: "tag v2"}
    assert kept(Retention(tags=("w1", "elsewhere")), HOURS, tags=tags) == {80: "tag w1"}
    assert kept(Retention(last=1), HOURS, tags=tags) == {100: "last"}


def test_a_snapshot_stays_if_any_branch_keeps_it() -> None:
    main, warmer = [c.id for c in HOURS[1:]], [HOURS[0].id, *(c.id for c in HOURS[60:])]
    branches = {"main": main, "warmer": warmer}
    rule = Retention(last=1, first=True)
    assert kept(rule, HOURS, branches=branches) == {
        100: "last of warmer",
        99: "last of main",
        1: "first of main, first of warmer",
    }
    assert list(kept(replace(rule, group_by="none"), HOURS, branches=branches)) == [100, 1]


def test_days_are_those_of_the_time_zone_of_now() -> None:
    commits = at("2026-03-31 01:00", "2026-03-30 23:00")
    assert list(kept(Retention(daily=1), commits)) == [2]
    assert list(kept(Retention(daily=2), commits)) == [2, 1]
    west = NOW.astimezone(timezone(timedelta(hours=-8)))
    assert kept(Retention(daily=2), commits, west) == {2: "daily", 1: "oldest daily"}


def test_the_hour_that_summer_time_repeats_is_two_hours() -> None:
    berlin = datetime(2026, 10, 26, tzinfo=ZoneInfo("Europe/Berlin"))
    commits = at("2026-10-25 01:30", "2026-10-25 00:30", "2026-10-24 23:30")
    assert list(kept(Retention(hourly=2), commits, berlin)) == [3, 2]


def test_a_commit_from_the_future_does_not_move_what_within_counts_from() -> None:
    commits = at("2062-01-01", "2026-03-31 11:00", "2026-03-31 10:00", "2026-03-30 10:00")
    assert list(kept(Retention(within=timedelta(hours=5)), commits)) == [4, 3, 2]


def test_a_run_that_rested_loses_nothing_to_within() -> None:
    assert len(kept(Retention(within=timedelta(hours=200)), HOURS, NOW + timedelta(days=400))) == 100


def test_a_commit_of_the_repository_is_a_candidate() -> None:
    commit = Commit(ObjectId(bytes(32)), ObjectId(bytes(32)), (), 5, None, NOW, "", "", {"loss": 0.1}, {}, Stats())
    rule = Retention(last=1, every_steps=5, best=Best("loss"))
    assert rule.keep([commit, commit], NOW) == {commit.id: "last, every 5 steps, best loss"}


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"group_by": "none"},
        {"tags": ()},
        {"tags": []},
        {"first": False},
        {"last": 0},
        {"last": -2, "daily": 1},
        {"daily": 1.5},
        {"hourly": True},
        {"every_steps": 0},
        {"every_steps": -1},
        {"within": timedelta(0)},
        {"within": -timedelta(1)},
        {"last": 1, "group_by": "host"},
        {"tags": "v1"},
    ],
    ids=str,
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Retention(**wrong)


@pytest.mark.parametrize("wrong", [{"count": 0}, {"count": -2}, {"mode": "least"}, {"metric": ""}], ids=str)
def test_a_best_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Best(**{"metric": "loss", **wrong})


def test_a_number_that_makes_no_sense_is_named_also_where_it_stands_alone() -> None:
    with pytest.raises(InvalidInput, match="last is a number from 1 on"):
        Retention(last=0)


def test_the_reasons_of_a_snapshot_are_one_text_each() -> None:
    rule = Retention(last=1, first=True)
    assert rule.reasons(DAYS[:1], NOW) == {DAYS[0].id: ("last", "first")}
    assert Retention(tags=["v1"]) == Retention(tags=("v1",))  # type: ignore[arg-type]


def test_now_needs_a_time_zone() -> None:
    with pytest.raises(InvalidInput, match="time zone"):
        Retention(last=1).keep(HOURS, datetime(2026, 1, 1))


# ---- whatever the rules


COUNTS = st.none() | st.just(-1) | st.integers(1, 6)
RULES = st.builds(
    Retention,
    last=st.just(1) | st.integers(1, 6),
    every_steps=st.none() | st.integers(1, 9),
    best=st.none() | st.builds(Best, st.just("loss"), st.integers(1, 4), st.sampled_from(["min", "max"])),
    **dict.fromkeys(CALENDAR, COUNTS),
    within=st.none() | st.timedeltas(timedelta(minutes=1), timedelta(days=400)),
    first=st.booleans(),
)
TIMES = st.datetimes(datetime(2020, 1, 1), datetime(2026, 3, 30), timezones=st.just(UTC))
ZONES = st.sampled_from([UTC, ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Kolkata"), ZoneInfo("Pacific/Auckland")])
METRICS = st.fixed_dictionaries({}, optional={"loss": st.floats()})


@st.composite
def chains(draw: st.DrawFn) -> list[Made]:
    """Draw commits of distinct times, newest first."""
    times = sorted(draw(st.sets(TIMES, max_size=30)), reverse=True)
    steps = st.none() | st.integers(0, 40)
    return [Made(n, time, draw(steps), draw(METRICS)) for n, time in enumerate(times, 1)]


@given(RULES, chains(), ZONES, st.randoms(use_true_random=False))
def test_the_order_in_which_commits_are_given_does_not_matter(rule, commits, zone, random) -> None:
    shuffled = random.sample(commits, len(commits))
    now = NOW.astimezone(zone)
    assert list(rule.keep(shuffled, now).items()) == list(rule.keep(commits, now).items())


@given(RULES, RULES, chains())
def test_a_rule_that_is_added_never_drops_a_snapshot(rule, other, commits) -> None:
    more = {name: getattr(other, name) for name in ("hourly", "weekly", "within", "best") if not getattr(rule, name)}
    assert set(rule.keep(commits, NOW)) <= set(replace(rule, **more).keep(commits, NOW))


@given(RULES, chains(), ZONES)
def test_each_rule_keeps_no_more_than_it_may_and_the_newest_of_each_bucket(rule, commits, zone) -> None:
    now = NOW.astimezone(zone)
    for name in CALENDAR:
        count = getattr(rule, name)
        if count is None:
            continue
        found = Retention(**{name: count}).keep(commits, now)
        assert count == -1 or len(found) <= count
        if commits:
            assert commits[0].id in found
            assert len(found) == count or commits[-1].id in found


@given(chains(), st.integers(1, 40), ZONES)
def test_a_day_keeps_its_newest_snapshot_and_no_other_but_the_oldest_of_all(commits, count, zone) -> None:
    found = Retention(daily=count).keep(commits, NOW.astimezone(zone))
    days = [(c, c.time.astimezone(zone).date()) for c in commits]
    newest = [c for c, day in days if next(c for c, other in days if other == day) is c]
    expected = [c.id for c in newest[:count]]
    if len(newest) < count and commits:
        expected = list(dict.fromkeys([*expected, commits[-1].id]))
    assert list(found) == expected


@given(RULES, chains())
def test_keeping_again_what_was_kept_by_count_drops_nothing(rule, commits) -> None:
    """Forgetting every day must not thin a chain that already obeys the policy."""
    steady = Retention(last=rule.last, daily=rule.daily, monthly=rule.monthly)
    once = steady.keep(commits, NOW)
    again = steady.keep([commit for commit in commits if commit.id in once], NOW)
    assert set(again) == set(once)


@given(chains(), st.integers(1, 5))
def test_a_chain_that_grows_and_is_thinned_each_time_keeps_the_newest_of_its_days(commits, count) -> None:
    rule, chain = Retention(last=1, daily=count), []
    for commit in reversed(commits):
        chain = [commit, *chain]
        kept_ids = rule.keep(chain, NOW)
        chain = [each for each in chain if each.id in kept_ids]
    days = list(dict.fromkeys(commit.time.date() for commit in commits))[:count]
    assert {commit.time.date() for commit in chain} >= set(days)
    assert all(newer.time > older.time for newer, older in pairwise(chain))
