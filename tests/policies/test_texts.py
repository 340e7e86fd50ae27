"""Policies as text: what is written down is read again as the same policy, and what makes no sense names itself."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainstore.errors import InvalidInput
from chainstore.policies import Best, Retention, describe_retention, format_retention, parse_retention
from chainstore.policies.spans import format_span, parse_span

COUNTS = st.none() | st.just(-1) | st.integers(1, 10**18 - 1)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
POLICIES = st.builds(
    Retention,
    last=st.just(1) | COUNTS,
    every_steps=st.none() | st.integers(1, 10**18 - 1),
    best=st.none() | st.builds(Best, NAMES, st.just(-1) | st.integers(1, 99), st.sampled_from(["min", "max"])),
    **dict.fromkeys(("hourly", "daily", "weekly", "monthly", "yearly"), COUNTS),
    within=st.none() | st.timedeltas(timedelta(microseconds=1), timedelta.max),
    tags=st.lists(NAMES, max_size=3).map(tuple),
    first=st.just(True),
    group_by=st.sampled_from(["branch", "none"]),
)

TABLE = [
    (Retention(last=5), "last=5", "keep-last 5"),
    (Retention(last=-1, first=True), "last=all first", "keep-last all, keep-first"),
    (
        Retention(last=5, daily=7, every_steps=1000, best=Best("loss", 3)),
        "last=5 daily=7 every_steps=1000 best=loss:min:3",
        "keep-last 5, keep-daily 7, keep-every-steps 1000, keep-best 3 loss min",
    ),
    (
        Retention(hourly=24, weekly=4, monthly=12, yearly=2, within=timedelta(days=1, hours=12)),
        "hourly=24 weekly=4 monthly=12 yearly=2 within=1d12h",
        "keep-hourly 24, keep-weekly 4, keep-monthly 12, keep-yearly 2, keep-within 1d12h",
    ),
    (
        Retention(tags=("v*", "a b"), best=Best("val:acc", 1, "max"), group_by="none"),
        "'tag=v*' 'tag=a b' best=val:acc:max:1 group_by=none",
        "keep-tag v*, keep-tag a b, keep-best 1 val:acc max, group-by none",
    ),
]


@pytest.mark.parametrize(("policy", "stored", "said"), TABLE, ids=[row[1] for row in TABLE])
def test_a_policy_is_written_and_said_in_these_words(policy, stored, said):
    assert format_retention(policy) == stored
    assert describe_retention(policy) == said
    assert parse_retention(stored) == policy


@given(POLICIES)
def test_a_policy_that_was_written_down_is_read_again(policy):
    text = format_retention(policy)
    assert parse_retention(text) == policy
    assert format_retention(parse_retention(text)) == text


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("last", "'last'"),
        ("last=", "'last='"),
        ("last=many", "'last=many'"),
        ("last=0", "last is a number from 1 on"),
        ("last=-2", "not -2"),
        ("last=²", "'last=²'"),
        ("last=1 last=2", "'last' stands twice"),
        ("latest=1", "'latest=1'"),
        ("first=yes", "'first=yes'"),
        ("every_steps=all", "'every_steps=all'"),
        ("every_steps=0", "every_steps is a number from 1 on"),
        ("within=soon", "'within=soon'"),
        ("within=5", "'within=5'"),
        ("within=0s", "within is a length of time"),
        ("best=loss", "'best=loss'"),
        ("best=:min:3", "'best=:min:3'"),
        ("best=loss:least:3", "'best=loss:least:3'"),
        ("best=loss:min:0", "best is a number from 1 on"),
        ("group_by=host last=1", "not 'host'"),
        ("group_by=none", "without a rule"),
        ("", "without a rule"),
        ("last=5 'tag=", "No closing quotation"),
    ],
)
def test_text_that_makes_no_sense_is_refused_and_named(wrong, named):
    with pytest.raises(InvalidInput, match=named):
        parse_retention(wrong)


@given(st.text(max_size=30))
def test_any_text_is_a_policy_or_invalid(text):
    try:
        policy = parse_retention(text)
    except InvalidInput:
        return
    assert parse_retention(format_retention(policy)) == policy


@given(st.timedeltas(timedelta(0), timedelta.max))
def test_a_span_is_written_without_losing_a_microsecond(span):
    assert parse_span(format_span(span)) == span


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("12h", 43200), ("1h30m", 5400), ("500ms", 0.5), ("2w", 1209600), ("1.5d", 129600), ("3min", 180)],
)
def test_a_span_takes_the_units_of_every_duration(text, seconds):
    assert parse_span(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "5", "h", "1y", "-1h", "1h 30m", "999999999999w"])
def test_other_text_is_no_span(text):
    with pytest.raises(InvalidInput):
        parse_span(text)
