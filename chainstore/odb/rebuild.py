"""Rebuild: the index made anew from the log and the packs, and the log healed from the index.

Nothing that was there is trusted before it was looked at, and nothing is taken away before its successor is durable.

    log_healing   the log, from itself and the old index
    replay        the index, from the log and the packs
    lost_refs     refs whose snapshot went with what is damaged
"""

from chainstore.errors import Damaged
from chainstore.leases import publish_lock
from chainstore.observe import Observer
from chainstore.odb.layout import Format, Layout, Owner
from chainstore.odb.log_healing import heal_log
from chainstore.odb.lost_refs import move_lost_refs
from chainstore.odb.opening import open_local
from chainstore.odb.places import place_index, tell
from chainstore.odb.rebuild_report import RebuildReport
from chainstore.odb.record import Sealer
from chainstore.odb.replay import build_index
from chainstore.odb.surroundings import Surroundings
from chainstore.odb.take_over import check_take_over, drop_other_indexes, is_elsewhere
from chainstore.odb.view import View
from chainstore.storage.pack import PackDir


def rebuild_index(
    layout: Layout,
    format: Format,
    sealer: Sealer,
    keyring_number: int,
    around: Surroundings,
    observer: Observer,
    *,
    take_over: bool = False,
) -> RebuildReport:
    """Make the index anew and put it in force; the old one is then removed.

    Args:
        take_over: do so although the index in force is on another machine and locks may not reach it.

    Raises:
        Damaged: neither the log nor the old index can be read.
        IndexElsewhere: another machine writes to it, as far as can be known.
        Locked: somebody publishes all the time.
    """
    report = RebuildReport()
    layout = place_index(layout, format.repo_id)
    with publish_lock(layout.leases, around.who):
        old = _old_owner(layout)
        if old is not None and is_elsewhere(layout, old):
            check_take_over(layout, old, asked=take_over)
        heal_log(layout, format, sealer, report)
        owner = build_index(layout, format, sealer, around, report, observer)
        layout.write_owner(owner)
        drop_other_indexes(layout, old.uuid if old is not None else None, owner.uuid)
    if layout.on_network and layout.index_dir is None:
        tell(around, layout, f"{layout.root} is on a network disk")
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


def _old_owner(layout: Layout) -> Owner | None:
    try:
        return layout.read_owner()
    except Damaged:
        return None  # then nothing says which index was in force
