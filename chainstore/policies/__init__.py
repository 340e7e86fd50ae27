"""Policies: rules as values and pure functions.  Nothing here looks at a clock, a disk or a repository.

`Retention` says which commits of a chain keep their snapshots, and why; `format_retention` and `parse_retention` write
it down and read it again.  A `Trigger` says when the next snapshot is due; `parse_interval` and `format_interval` do
the same for it, and `Interval` knows how often one pays.
"""

from chainstore.policies.interval import Interval, Limits, slowdown_of
from chainstore.policies.interval_texts import format_interval, parse_interval
from chainstore.policies.progress import Moment, Progress, Trigger
from chainstore.policies.retention import Best, Retention
from chainstore.policies.texts import describe_retention, format_retention, parse_retention
from chainstore.policies.triggers import (
    Adaptive,
    AnyOf,
    EveryBatches,
    EveryEpoch,
    EverySeconds,
    EverySteps,
    OnBest,
    Signal,
    WhenDurable,
    as_trigger,
    bests_after,
)

__all__ = [
    "Adaptive",
    "AnyOf",
    "Best",
    "EveryBatches",
    "EveryEpoch",
    "EverySeconds",
    "EverySteps",
    "Interval",
    "Limits",
    "Moment",
    "OnBest",
    "Progress",
    "Retention",
    "Signal",
    "Trigger",
    "WhenDurable",
    "as_trigger",
    "bests_after",
    "describe_retention",
    "format_interval",
    "format_retention",
    "parse_interval",
    "parse_retention",
    "slowdown_of",
]
