"""Comparing: two snapshots of a repository side by side."""

from chainstore.lazy import Globs, Snapshot
from chainstore.lazy.selection import selection
from chainstore.model.manifest import Manifest
from chainstore.ops.comparison import Depth, Side, compare_snapshots
from chainstore.ops.differences import Diff
from chainstore.repository.handles import Handle


def compare(handle: Handle, a: Snapshot, b: Snapshot, select: Globs, norms: bool, unchanged: bool) -> Diff:
    """Return what differs between two snapshots; see `Repository.diff`."""
    return compare_snapshots(
        handle.db,
        _side(a),
        _side(b),
        Depth(selection(select, None), norms, unchanged),
        threads=handle.settings.threads,
        max_memory_bytes=handle.settings.max_memory_bytes,
        observer=handle.settings.observer,
    )


def _side(snapshot: Snapshot) -> Side:
    return Side(snapshot.commit, snapshot.manifest, Manifest(snapshot.file_entries))
