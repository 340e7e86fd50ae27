"""What a manager counts: the names and meanings of its metrics, in one table.

Dashboards and alerts hang on these names, so they do not change.  `docs/reference/metrics.md` is made from the table.

    >>> metrics = SnapshotMetrics.on(Registry())
    >>> metrics.stall.observe(0.4)
    >>> metrics.interruptions.of(cause="preemption").inc()
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from chainstore.metrics.registry import Counter, Gauge, Histogram, Registry

BYTES = ("new", "reused", "delta", "stored")
CAUSES = (
    "preemption",
    "host-out-of-memory",
    "device-out-of-memory",
    "device-fault",
    "peer-lost",
    "hang",
    "bad-values",
    "storage",
    "user-bug",
    "unknown",
)


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table: the name that Prometheus has, what it says, and what each label says."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: Mapping[str, str] = field(default_factory=dict)


TABLE: Mapping[str, Metric] = {
    "stall": Metric("chain_snapshot_stall_seconds", "histogram", "Seconds that training stood still for a snapshot."),
    "background": Metric(
        "chain_snapshot_background_seconds", "histogram", "Seconds that a snapshot was written beside training."
    ),
    "durable": Metric(
        "chain_snapshot_time_to_durable_seconds",
        "histogram",
        "Seconds from the start of a capture until no crash could lose it any more.",
    ),
    "snapshots": Metric("chain_snapshots_total", "counter", "Snapshots that became durable."),
    "skipped": Metric(
        "chain_snapshots_skipped_total",
        "counter",
        "Snapshots that were due and not taken, because too many were still on their way to the disk.",
    ),
    "failed": Metric(
        "chain_snapshots_failed_total",
        "counter",
        "Snapshots that were begun and did not become durable.",
        {"error": "the code of the error"},
    ),
    "bytes": Metric(
        "chain_snapshot_bytes_total",
        "counter",
        "Bytes of snapshots by what became of them; new and reused together are the state.",
        {
            "kind": "`new`, not stored before; `reused`, stored already; `delta`, of the new ones, stored as a "
            "difference; `stored`, what the new ones take on disk"
        },
    ),
    "pending": Metric("chain_snapshots_pending", "gauge", "Snapshots that are captured and not durable yet."),
    "interval": Metric(
        "chain_snapshot_interval_seconds", "gauge", "Seconds between the last two snapshots that were captured."
    ),
    "optimal": Metric(
        "chain_snapshot_interval_optimal_seconds",
        "gauge",
        "Seconds between snapshots that would lose least time, by costs and failures so far, without limits.",
    ),
    "interruptions": Metric(
        "chain_interruptions_total",
        "counter",
        "Times the run was interrupted.",
        {"cause": "as far as known, one of " + ", ".join(f"`{cause}`" for cause in CAUSES)},
    ),
    "resumes": Metric("chain_resumes_total", "counter", "Times the run went on from a snapshot."),
    "last_time": Metric(
        "chain_last_durable_timestamp_seconds",
        "gauge",
        "When the newest durable snapshot was captured, in seconds since 1970 UTC; 0 before the first.",
    ),
    "last_age": Metric(
        "chain_last_durable_age_seconds",
        "gauge",
        "How old the newest durable snapshot was when these numbers were written.",
    ),
    "last_step": Metric("chain_last_durable_step", "gauge", "Step of the newest durable snapshot."),
}


@dataclass(frozen=True, slots=True)
class SnapshotMetrics:
    """The metrics of the table, ready to count; each attribute is the row of its name."""

    stall: Histogram
    background: Histogram
    durable: Histogram
    snapshots: Counter
    skipped: Counter
    failed: Counter
    bytes: Counter
    pending: Gauge
    interval: Gauge
    optimal: Gauge
    interruptions: Counter
    resumes: Counter
    last_time: Gauge
    last_age: Gauge
    last_step: Gauge

    @classmethod
    def on(cls, registry: Registry) -> "SnapshotMetrics":
        """Return the metrics of a registry, made there if they are not yet."""
        makers = {"counter": registry.counter, "gauge": registry.gauge, "histogram": registry.histogram}
        made = {at: makers[row.kind](row.name, row.help, tuple(row.labels)) for at, row in TABLE.items()}
        metrics = cls(**made)  # type: ignore[arg-type]
        for kind in BYTES:  # a series that is there from the start has a rate from the start
            metrics.bytes.of(kind=kind)
        return metrics
