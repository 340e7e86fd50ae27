"""Metrics: numbers that a run tells about itself, and the text that Prometheus reads.

Pure: a registry counts in memory, `render` makes text of it, and nothing here opens a file or a port.

    >>> registry = Registry()
    >>> registry.counter("chain_resumes_total", "Times the run was resumed.").inc()
    >>> "chain_resumes_total 1.0" in render(registry)
    True
"""

from chainstore.metrics.prometheus import CONTENT_TYPE, render, write_textfile
from chainstore.metrics.registry import Counter, Gauge, Histogram, Registry
from chainstore.metrics.snapshots import SnapshotMetrics

__all__ = ["CONTENT_TYPE", "Counter", "Gauge", "Histogram", "Registry", "SnapshotMetrics", "render", "write_textfile"]
