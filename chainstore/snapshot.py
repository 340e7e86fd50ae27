"""A door: `SnapshotManager` and `Snapshot` under the name that many scripts import them by."""

from chainstore.lazy import Snapshot
from chainstore.manager.manager import SnapshotManager

__all__ = ["Snapshot", "SnapshotManager"]
