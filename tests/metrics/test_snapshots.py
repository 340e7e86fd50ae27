"""The table of what a manager counts."""

from dataclasses import fields

from prometheus_client.parser import text_string_to_metric_families

from chainstore.metrics import Registry, SnapshotMetrics, render
from chainstore.metrics.snapshots import BYTES, CAUSES, TABLE


def test_every_row_is_an_attribute_and_every_attribute_a_row() -> None:
    assert [field.name for field in fields(SnapshotMetrics)] == list(TABLE)
    metrics = SnapshotMetrics.on(Registry())
    for name, row in TABLE.items():
        family = getattr(metrics, name)
        assert (family.name, family.kind, family.help) == (row.name, row.kind, row.help)
        assert family.labels == tuple(row.labels)


def test_names_are_prometheus_ways() -> None:
    names = [row.name for row in TABLE.values()]
    assert len(set(names)) == len(names)
    for row in TABLE.values():
        assert row.name.startswith("chain_") and row.help.endswith(".")
        assert row.name.endswith("_total") == (row.kind == "counter")
        assert row.kind != "histogram" or row.name.endswith("_seconds")


def test_what_is_counted_is_in_the_text() -> None:
    registry = Registry()
    metrics = SnapshotMetrics.on(registry)
    metrics.stall.observe(0.4)
    metrics.bytes.of(kind="new").inc(1000)
    for cause in CAUSES:
        metrics.interruptions.of(cause=cause).inc()
    assert SnapshotMetrics.on(registry).stall is metrics.stall
    samples = [s for family in text_string_to_metric_families(render(registry)) for s in family.samples]
    found = {(s.name, *s.labels.values()): s.value for s in samples}
    assert found[("chain_snapshot_stall_seconds_count",)] == 1
    assert {kind: found[("chain_snapshot_bytes_total", kind)] for kind in BYTES} == {
        k: 1000.0 * (k == "new") for k in BYTES
    }
    assert all(found[("chain_interruptions_total", cause)] == 1 for cause in CAUSES)
