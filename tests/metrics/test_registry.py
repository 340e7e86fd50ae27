"""Counters, gauges and histograms: what they count, from many threads, and what is refused."""

import threading
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainstore.errors import InvalidInput
from chainstore.metrics import Registry
from chainstore.metrics.registry import SECONDS


def test_a_counter_grows() -> None:
    counter = Registry().counter("a_total", "A.")
    counter.inc()
    counter.inc(2.5)
    assert counter.read() == 3.5
    for wrong in (-1, nan):
        with pytest.raises(InvalidInput):
            counter.inc(wrong)
    assert counter.read() == 3.5


def test_a_gauge_goes_up_and_down() -> None:
    gauge = Registry().gauge("a", "A.")
    gauge.set(5)
    gauge.dec()
    gauge.inc(0.5)
    assert gauge.read() == 4.5


@given(st.lists(st.floats(-10, 2000)), st.lists(st.floats(-10, 2000), min_size=1, unique=True).map(sorted))
def test_a_histogram_counts_what_is_at_most_each_bound(values: list[float], bounds: list[float]) -> None:
    histogram = Registry().histogram("a", "A.", buckets=bounds)
    for value in values:
        histogram.observe(value)
    reading = histogram.read()
    assert reading.buckets == tuple((bound, sum(v <= bound for v in values)) for bound in (*bounds, inf))
    assert reading.count == len(values) and reading.sum == pytest.approx(sum(values))


def test_odd_values_are_counted_in_the_last_bucket() -> None:
    histogram = Registry().histogram("a", "A.", buckets=(1.0, inf))
    for value in (nan, inf):
        histogram.observe(value)
    assert histogram.read().buckets == ((1.0, 0), (inf, 2))


def test_labels_tell_apart() -> None:
    counter = Registry().counter("a_total", "A.", ("cause", "rank"))
    counter.of(cause="hang", rank=3).inc()
    counter.of(rank="3", cause="hang").inc()
    counter.of(cause="hang", rank=4)
    assert [(key, value.read()) for key, value in counter.values()] == [(("hang", "3"), 2.0), (("hang", "4"), 0.0)]
    for wrong in ({}, {"cause": "hang"}, {"cause": "hang", "rank": 1, "more": 2}):
        with pytest.raises(InvalidInput, match="has the labels cause, rank"):
            counter.of(**wrong)
    with pytest.raises(InvalidInput, match="say of"):
        counter.inc()
    with pytest.raises(InvalidInput, match="has the labels none"):
        Registry().gauge("b", "B.").of(cause="hang")


def test_asking_again_gives_the_same_and_another_meaning_is_refused() -> None:
    registry = Registry()
    first = registry.counter("a_total", "A.", ("cause",))
    assert registry.counter("a_total", "Said otherwise.", ["cause"]) is first and list(registry) == [first]
    with pytest.raises(InvalidInput, match="already"):
        registry.counter("a_total", "A.")
    with pytest.raises(InvalidInput, match="already"):
        registry.gauge("a_total", "A.", ("cause",))


WRONG = [
    lambda registry: registry.counter("a", "A."),
    lambda registry: registry.gauge("1a", "A."),
    lambda registry: registry.gauge("a b", "A."),
    lambda registry: registry.gauge("ä", "A."),
    lambda registry: registry.gauge("a", "A.", ("__a",)),
    lambda registry: registry.gauge("a", "A.", ("a-b",)),
    lambda registry: registry.gauge("a", "A.", ("b", "b")),
    lambda registry: registry.gauge("a", "A.", ("branch",)),
    lambda registry: registry.histogram("a", "A.", ("le",)),
    lambda registry: registry.histogram("a", "A.", buckets=()),
    lambda registry: registry.histogram("a", "A.", buckets=(2.0, 1.0)),
    lambda registry: registry.histogram("a", "A.", buckets=(1.0, 1.0)),
    lambda registry: registry.histogram("a", "A.", buckets=(1.0, nan)),
    lambda registry: Registry({"a b": 1}),
]


@pytest.mark.parametrize("make", WRONG)
def test_what_prometheus_would_not_take_is_refused(make: Any) -> None:
    registry = Registry({"branch": "main"})
    with pytest.raises(InvalidInput):
        make(registry)
    assert list(registry) == []


def test_no_update_of_many_threads_is_lost() -> None:
    registry, threads, times = Registry(), 8, 3000
    counter, gauge = registry.counter("a_total", "A.", ("t",)), registry.gauge("b", "B.")
    histogram = registry.histogram("c", "C.", buckets=SECONDS)

    def work() -> None:
        for n in range(times):
            counter.of(t=n % 3).inc()
            gauge.inc(2)
            histogram.observe(n % 5)
            registry.gauge("b", "B.")

    running = [threading.Thread(target=work) for _ in range(threads)]
    for thread in running:
        thread.start()
    while any(thread.is_alive() for thread in running):
        reading = histogram.read()
        counts = [count for _, count in reading.buckets]
        assert counts == sorted(counts) and counts[-1] == reading.count
    for thread in running:
        thread.join()
    assert sum(value.read() for _, value in counter.values()) == threads * times
    assert gauge.read() == 2 * threads * times and histogram.read().count == threads * times
