"""Policies: rules as values and pure functions.  Nothing here looks at a clock, a disk or a repository.

`Retention` says which commits of a chain keep their snapshots, and why; `format_retention` and `parse_retention` write
it down and read it again.
"""

from chainstore.policies.retention import Best, Retention
from chainstore.policies.texts import describe_retention, format_retention, parse_retention

__all__ = ["Best", "Retention", "describe_retention", "format_retention", "parse_retention"]
