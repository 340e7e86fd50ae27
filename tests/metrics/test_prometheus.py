"""The text that Prometheus reads, as its own parser reads it."""

from math import inf, isnan, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from chainstore.metrics import CONTENT_TYPE, Registry, render, write_textfile
from chainstore.metrics.prometheus import number


def parsed(registry: Registry) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(render(registry))}


def test_every_line_is_as_the_format_says() -> None:
    registry = Registry({"branch": "main"})
    registry.counter("resumes_total", "Times the run was\nresumed, \\ all.", ("cause",)).of(cause='a "b"\n\\').inc(3)
    registry.gauge("age_seconds", "Age.").set(1.5)
    stall = registry.histogram("stall_seconds", "Stall.", buckets=(0.1, 1))
    stall.observe(0.3)
    stall.observe(7)
    assert render(registry).splitlines() == [
        r"# HELP resumes_total Times the run was\nresumed, \\ all.",
        "# TYPE resumes_total counter",
        r'resumes_total{branch="main",cause="a \"b\"\n\\"} 3.0',
        "# HELP age_seconds Age.",
        "# TYPE age_seconds gauge",
        'age_seconds{branch="main"} 1.5',
        "# HELP stall_seconds Stall.",
        "# TYPE stall_seconds histogram",
        'stall_seconds_bucket{branch="main",le="0.1"} 0',
        'stall_seconds_bucket{branch="main",le="1.0"} 1',
        'stall_seconds_bucket{branch="main",le="+Inf"} 2',
        'stall_seconds_sum{branch="main"} 7.3',
        'stall_seconds_count{branch="main"} 2',
    ]


def test_the_text_ends_its_last_line_and_nothing_is_no_text() -> None:
    registry = Registry()
    assert render(registry) == ""
    registry.gauge("a", "A.")
    assert render(registry) == "# HELP a A.\n# TYPE a gauge\na 0.0\n"
    assert write_textfile(registry) == render(registry).encode() and "0.0.4" in CONTENT_TYPE


def test_a_metric_with_labels_that_counted_nothing_yet_has_no_series() -> None:
    registry = Registry()
    registry.counter("a_total", "A.", ("cause",))
    assert render(registry) == "# HELP a_total A.\n# TYPE a_total counter\n"
    assert parsed(registry)["a"].samples == []


@pytest.mark.parametrize(
    ("value", "text"), [(nan, "NaN"), (inf, "+Inf"), (-inf, "-Inf"), (0.1, "0.1"), (1e300, "1e+300"), (7, "7")]
)
def test_numbers_are_written_as_prometheus_reads_them(value: float, text: str) -> None:
    assert number(value) == text


texts = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=20)


@given(help=texts, label=texts, value=st.floats(), common=texts)
def test_whatever_is_counted_is_read_back(help: str, label: str, value: float, common: str) -> None:
    registry = Registry({"run": common})
    registry.gauge("a", help, ("name",)).of(name=label).set(value)
    (sample,) = parsed(registry)["a"].samples
    assert sample.labels == {"run": common, "name": label}
    assert sample.value == value or (isnan(sample.value) and isnan(value))


@given(st.lists(st.floats(0, 2000), max_size=50))
def test_a_histogram_is_read_back(values: list[float]) -> None:
    registry = Registry()
    histogram = registry.histogram("a", "A.", ("kind",))
    for value in values:
        histogram.of(kind="x").observe(value)
    samples = {
        (sample.name, sample.labels.get("le")): sample.value
        for family in text_string_to_metric_families(render(registry))
        for sample in family.samples
    }
    if values:
        reading = histogram.of(kind="x").read()
        assert samples[("a_count", None)] == samples[("a_bucket", "+Inf")] == len(values)
        assert samples[("a_sum", None)] == reading.sum
        assert {float(le): count for (_, le), count in samples.items() if le} == dict(reading.buckets)


def test_half_a_surrogate_does_not_stop_the_textfile() -> None:
    registry = Registry()
    registry.gauge("a", "A.", ("name",)).of(name="\ud800").set(1)
    assert b'a{name="?"} 1.0' in write_textfile(registry)
