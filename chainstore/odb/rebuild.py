"""Rebuild: the index made anew from the log and the packs, and the log healed from the index.

Nothing that was there is trusted before it was looked at, and nothing is taken away before its successor is durable.

    log_healing   the log, from itself and the old index
    replay        the index, from the log and the packs
    lost_refs     refs whose snapshot went with what is damaged
"""

from contextlib import suppress
from pathlib import Path

from chainstore.errors import Damaged
from chainstore.leases import publish_lock
from chainstore.observe import Observer
from chainstore.odb.layout import Format, Layout
from chainstore.odb.log_healing import heal_log
from chainstore.odb.lost_refs import move_lost_refs
from chainstore.odb.opening import open_local
from chainstore.odb.rebuild_report import RebuildReport
from chainstore.odb.record import Sealer
from chainstore.odb.replay import build_index
from chainstore.odb.surroundings import Surroundings
from chainstore.odb.view import View
from chainstore.storage import fs
from chainstore.storage.pack import PackDir


def rebuild_index(
    layout: Layout,
    format: Format,
    sealer: Sealer,
    keyring_number: int,
    around: Surroundings,
    observer: Observer,
) -> RebuildReport:
    """Make the index anew and put it in force; the old one is then removed.

    Raises:
        Damaged: neither the log nor the old index can be read.
        Locked: somebody publishes all the time.
    """
    report = RebuildReport()
    with publish_lock(layout.leases, around.who):
        heal_log(layout, format, sealer, report)
        old = _old_owner(layout)
        owner = build_index(layout, format, sealer, around, report, observer)
        layout.write_owner(owner)
        _remove_old_indexes(layout, old, owner.uuid)
    db = open_local(layout, format, sealer, keyring_number, around, readonly=False)
    try:
        move_lost_refs(db, report)
        with db.view() as view:
            report.objects = view.object_count()
            report.packs = sum(1 for _ in view.packs())
            _check_packs(db.packs, view, report)
    finally:
        db.close()
    return report


def _check_packs(packs: PackDir, view: View, report: RebuildReport) -> None:
    for _, line in view.packs():
        size = packs.size(line.pack)
        if not line.retired and size < line.length:
            report.problems.append(f"pack {line.pack.hex()} has {size} bytes where {line.length} were committed")


def _remove_old_indexes(layout: Layout, old: str | None, new: str) -> None:
    """Remove the index that was replaced, and what earlier rebuilds left where only ours can lie."""
    ours_alone = layout.index_root == layout.root / "index"
    for name in fs.list_dir(layout.index_root):
        if name != new and (name == old or (ours_alone and _is_index_name(name))):
            for file in ("data.mdb", "lock.mdb"):
                fs.unlink(layout.index_root / name / file, missing_ok=True)
            _remove_folder(layout.index_root / name)


def _is_index_name(name: str) -> bool:
    return len(name) == 32 and all(digit in "0123456789abcdef" for digit in name)


def _old_owner(layout: Layout) -> str | None:
    try:
        return layout.read_owner().uuid
    except Damaged:
        return None  # then nothing says which index was in force


def _remove_folder(folder: Path) -> None:
    with suppress(OSError):  # a process that still has it open keeps it; an empty folder harms nobody
        folder.rmdir()
