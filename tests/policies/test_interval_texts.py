"""Intervals as text: what users write, what is stored, and what is refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainstore.errors import ConfigError, InvalidInput
from chainstore.policies import (
    Adaptive,
    AnyOf,
    EveryBatches,
    EveryEpoch,
    EverySeconds,
    EverySteps,
    Interval,
    Limits,
    OnBest,
    Signal,
    Trigger,
    WhenDurable,
    format_interval,
    parse_interval,
)
from chainstore.settings import KNOWN, resolve

BEST = "best:eval/acc:max:delta=0.01:patience=500"
TABLE: list[tuple[int | str, Trigger, str]] = [
    (100, EverySteps(100), "100 steps"),
    ("100", EverySteps(100), "100 steps"),
    ("every 100 steps", EverySteps(100), "100 steps"),
    ("1 step", EverySteps(1), "1 step"),
    ("50 Batches", EveryBatches(50), "50 batches"),
    ("1 batch", EveryBatches(1), "1 batch"),
    ("epoch", EveryEpoch(), "1 epoch"),
    ("every 2 epochs", EveryEpoch(2), "2 epochs"),
    ("30m", EverySeconds(1800), "30m"),
    ("every 90 minutes", EverySeconds(5400), "1h30m"),
    ("1 hour 30 min", EverySeconds(5400), "1h30m"),
    ("90s", EverySeconds(90), "1m30s"),
    ("2 days", EverySeconds(172_800), "2d"),
    ("0.5s", EverySeconds(0.5), "0.5s"),
    ("adaptive", Adaptive(), "adaptive"),
    ("ADAPTIVE:lost=10m:overhead=2%", Adaptive(Interval(limits=Limits(600, 0.02))), "adaptive:lost=10m:overhead=0.02"),
    ("best:loss", OnBest("loss"), "best:loss:min"),
    ("best:loss:patience=5", OnBest("loss", patience=5), "best:loss:min:patience=5"),
    (BEST, OnBest("eval/acc", "max", 0.01, 500), BEST),
    ("durable", WhenDurable(), "durable"),
    ("signal", Signal(), "signal"),
    ("every 100 steps or 30m", AnyOf((EverySteps(100), EverySeconds(1800))), "100 steps or 30m"),
    (
        "epoch, best:loss or signal",
        AnyOf((EveryEpoch(), OnBest("loss"), Signal())),
        "1 epoch or best:loss:min or signal",
    ),
]


@pytest.mark.parametrize(("given_text", "trigger", "written"), TABLE, ids=[str(row[0]) for row in TABLE])
def test_a_text_says(given_text: int | str, trigger: Trigger, written: str) -> None:
    assert parse_interval(given_text) == trigger
    assert format_interval(trigger) == written
    assert parse_interval(written) == trigger


NONSENSE = [
    0,
    -1,
    True,
    2.5,
    None,
    "",
    " ",
    "0",
    "-1",
    "0 steps",
    "-30m",
    "0s",
    "abc",
    "10 parsecs",
    "30",
    "1e3",
    "nan",
]
NONSENSE += ["every", "or", "100 steps or", "100 steps or 0s", "100 steps 30m", "٣ steps", "9" * 30, "9999999999w"]
NONSENSE += [
    "best",
    "best:",
    "best:loss:mean",
    "best:loss:min:delta=-1",
    "best:loss:min:patience=x",
    "best:loss:min:a=1",
]
NONSENSE += [
    "best:loss:min:patience=1:patience=2",
    "adaptive:lost=0s",
    "adaptive:overhead=200%",
    "adaptive:fast",
    "x" * 999,
]
NONSENSE.remove("30")  # thirty steps


@pytest.mark.parametrize("nonsense", NONSENSE, ids=lambda each: repr(each)[:30])
def test_nonsense_is_refused_with_what_was_said_and_a_hint(nonsense: Any) -> None:
    with pytest.raises(InvalidInput, match="is no interval: ") as caught:
        parse_interval(nonsense)
    assert repr(nonsense) in str(caught.value) and "30m" in caught.value.hint


counts = st.integers(1, 10**12)
metrics = st.text(st.characters(codec="ascii", exclude_characters=" :,=", min_codepoint=33), min_size=1)
simple = st.one_of(
    counts.map(EverySteps),
    counts.map(EveryBatches),
    counts.map(EveryEpoch),
    st.floats(0.001, 1e9).map(EverySeconds),
    st.builds(OnBest, metrics, st.sampled_from(["min", "max"]), st.floats(0, 1e12), st.integers(0, 10**9)),
    st.builds(Limits, st.floats(0.001, 1e6).map(lambda s: round(s, 6)), st.floats(1e-6, 1)).map(
        lambda limits: Adaptive(Interval(limits=limits))
    ),
    st.sampled_from([WhenDurable(), Signal()]),
)


@given(st.lists(simple, min_size=1, max_size=4))
def test_what_is_written_is_read_again_as_the_same(triggers: list[Trigger]) -> None:
    trigger = triggers[0] if len(triggers) == 1 else AnyOf(tuple(triggers))
    text = format_interval(trigger)
    assert parse_interval(text) == trigger and format_interval(parse_interval(text)) == text


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        trigger = parse_interval(text)
    except InvalidInput:
        return
    assert parse_interval(format_interval(trigger)) == trigger


def test_what_cannot_be_written_is_refused() -> None:
    class Own:
        def due(self, progress: Any) -> str | None:
            return None

    for trigger in (Own(), OnBest("my loss"), OnBest("a:b")):
        with pytest.raises(InvalidInput, match="no text"):
            format_interval(trigger)


def test_the_setting_is_the_repositorys_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAIN_INTERVAL", "1 step")
    assert KNOWN["interval"].own
    assert resolve("interval", None, {}).value == ""
    assert resolve("interval", None, {"interval": "every 60 minutes"}).value == "1h"
    assert resolve("interval", 100, {"interval": "1h"}).value == "100 steps"
    with pytest.raises(ConfigError, match="set by the repository"):
        resolve("interval", None, {"interval": "abc"})
