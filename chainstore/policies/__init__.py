"""Policies: rules as values and pure functions.  Nothing here looks at a clock, a disk or a repository.

`Retention` says which commits of a chain keep their snapshots, and why.
"""

from chainstore.policies.retention import Best, Retention

__all__ = ["Best", "Retention"]
