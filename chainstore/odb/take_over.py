"""Take-over: this machine makes its own index the one in force, in place of one that it cannot see.

One machine at a time writes to a repository: the one that has the index which `index.owner` names.  Where a lock that
is taken here is seen by every other machine, holding it proves that nobody publishes right now, and whoever had the
index before finds out at its next publish (`in_force`).  Where that is not known, a person has to say so.
"""

from contextlib import suppress

from chainstore.errors import IndexElsewhere
from chainstore.observe import Notice, Observer
from chainstore.odb.layout import Format, Layout, Owner
from chainstore.odb.places import tell
from chainstore.odb.rebuild_report import RebuildReport
from chainstore.odb.record import Sealer
from chainstore.odb.replay import build_index
from chainstore.odb.surroundings import Surroundings
from chainstore.storage import fs


def is_elsewhere(layout: Layout, owner: Owner) -> bool:
    """Whether the index in force is, or was, on another machine's disk: not seen here, and not lost from its place."""
    return (owner.outside or layout.outside) and not layout.has_index(owner.uuid)


def check_take_over(layout: Layout, owner: Owner, *, asked: bool) -> None:
    """Refuse to take a repository from a host that may be writing to it.

    Raises:
        IndexElsewhere: it was not asked for, and locks may not reach that host.
    """
    if not asked and not fs.find_mount(layout.leases).shares_locks:
        raise IndexElsewhere(str(layout.root), owner.host, layout.owned_since())


def take_over(layout: Layout, format: Format, sealer: Sealer, around: Surroundings, before: Owner) -> Owner:
    """Make an index here and put it in force; the caller holds the publish lock, and `check_take_over` let it pass.

    Raises:
        Damaged: the log cannot be read.  The index on the other machine may heal it: `chain rebuild-index` there.
    """
    report = RebuildReport()
    owner = build_index(layout, format, sealer, around, report, around.observer, old=False)
    layout.write_owner(owner)
    drop_other_indexes(layout, before.uuid, owner.uuid)
    tell(around, layout, f"{layout.root} was written to by host {before.host} before")
    tell_problems(around.observer, report)
    return owner


def tell_problems(observer: Observer, report: RebuildReport) -> None:
    """Say what could not be put into a new index."""
    if report.problems:
        what = f"{report.problems[0]}" + (f" (and {len(report.problems) - 1} more)" if report.problems[1:] else "")
        observer(Notice("index-damage", f"the new index lacks what is damaged: {what}; see `chain verify`"))


def drop_other_indexes(layout: Layout, before: str | None, now: str) -> None:
    """Remove the index that was replaced, and what earlier rebuilds left where only indexes of this one can lie."""
    for root in layout.index_roots:
        for name in fs.list_dir(root):
            if name != now and (name == before or (layout.index_dir is None and _is_index_name(name))):
                for file in ("data.mdb", "lock.mdb"):
                    fs.unlink(root / name / file, missing_ok=True)
                with suppress(OSError):  # a process that has it open keeps it; an empty folder harms nobody
                    (root / name).rmdir()


def _is_index_name(name: str) -> bool:
    return len(name) == 32 and all(digit in "0123456789abcdef" for digit in name)
