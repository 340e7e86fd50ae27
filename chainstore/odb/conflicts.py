"""Conflicts: what a publication is refused for, because something moved since it was prepared.

All of it is looked at under the publish lock, right before the line is appended.
"""

from collections.abc import Iterable, Iterator, Sequence

from chainstore.errors import Conflict, RefConflict
from chainstore.ids import ObjectId
from chainstore.model.change import Change, Mark, SetRef, Target, Unmark
from chainstore.model.frame import MAX_DEPTH
from chainstore.odb.batch import LocalBatch
from chainstore.odb.forgotten import forgotten
from chainstore.odb.view import View


class GoneMeanwhile(Conflict):
    """Objects that a commit relied on were collected while it was written; storing them again helps."""

    code = "gone-meanwhile"


def check_publishable(
    view: View, batch: LocalBatch | None, changes: Sequence[Change], parents: Sequence[ObjectId]
) -> None:
    """Refuse a publication that does not fit what is in force.

    Raises:
        RefConflict: a ref is not where a `SetRef` expects it, or at a commit that a `Mark` would forget.
        SnapshotForgotten: gc has begun to take what a ref or a new commit would lead to.
        GoneMeanwhile: an object that the batch relied on is no longer there.
    """
    _check_refs(view, changes)
    _check_forgettable(view, changes)
    targets = [*parents, *_led_to(changes)]
    _check_marks(view, targets)
    _check_there(view, batch, targets)
    if batch is not None:
        _check_batch(view, batch)


def check_generation(batch: LocalBatch, generation: int) -> None:
    """Refuse a batch that was sealed with keys that others took out of use meanwhile.

    Raises:
        GoneMeanwhile: it was; written again, it is sealed with the new ones.
    """
    if any(header.generation != generation for header in batch.stored.values()):
        raise GoneMeanwhile("the repository's keys were renewed while this commit was written")


def _check_refs(view: View, changes: Sequence[Change]) -> None:
    """Refuse to move a ref that is elsewhere by now, or to move one twice."""
    moved: dict[str, Target] = {}
    for change in changes:
        if not isinstance(change, SetRef):
            continue
        row = view.ref(change.name)
        found = moved.get(change.name, row.target if row is not None else None)
        if found != change.old:
            raise RefConflict(change.name, _text(change.old), _text(found))
        moved[change.name] = change.new


def _check_forgettable(view: View, changes: Sequence[Change]) -> None:
    """Refuse to forget a commit that a ref names, now or once `changes` are made: it may have moved there just now."""
    marked = {id for change in changes if isinstance(change, Mark) for id in change.commits}
    if not marked:
        return
    targets = {row.name: row.target for row in view.refs()}
    targets |= {change.name: change.new for change in changes if isinstance(change, SetRef)}
    for name, target in targets.items():
        if target in marked:
            raise RefConflict(name, None, _text(target))


def taken_back(view: View, changes: Sequence[Change]) -> list[Change]:
    """Return what takes back the marks of commits that `changes` put a ref at: what has a name is not forgotten."""
    targets = {change.new for change in changes if isinstance(change, SetRef) and isinstance(change.new, ObjectId)}
    marked = sorted(target for target in targets if view.mark(target) is not None)
    return [Unmark(tuple(marked))] if marked else []


def _led_to(changes: Sequence[Change]) -> Iterator[Target]:
    """Yield the commits that `changes` lead to, or take back from being forgotten."""
    for change in changes:
        if isinstance(change, SetRef):
            yield change.new
        elif isinstance(change, Unmark):
            yield from change.commits


def _check_marks(view: View, targets: Iterable[Target]) -> None:
    """Refuse to lead to a commit whose bytes gc has begun to take."""
    for target in targets:
        mark = view.mark(target) if isinstance(target, ObjectId) else None
        if mark is not None and mark.swept:
            raise forgotten(mark)


def _check_there(view: View, batch: LocalBatch | None, targets: Iterable[Target]) -> None:
    """Refuse to lead to a commit that is not there: gc may have taken it since somebody looked it up."""
    stored = batch.stored if batch is not None else {}
    for target in targets:
        if isinstance(target, ObjectId) and target not in stored and view.place(target) is None:
            raise GoneMeanwhile(f"commit {target.short} is not there any more: nothing led to it, and gc took it")


def _check_batch(view: View, batch: LocalBatch) -> None:
    """Refuse a batch that relies on objects which are gone, or whose bases are."""
    gone = [id for id in batch.relied if view.place(id) is None]
    stored = batch.stored
    for header in stored.values():
        for base in header.bases:
            place = view.place(base)
            depths = [below.depth for below in (stored.get(base), place) if below is not None]
            if min(depths, default=MAX_DEPTH) >= header.depth:
                gone.append(base)
    for name in (pack.name for pack in batch.packs):
        number = view.pack_number(name)
        if number is not None and view.pack(number).retired:
            raise GoneMeanwhile(f"pack {name.hex()}, which this commit was written to, was retired meanwhile")
    if gone:
        raise GoneMeanwhile(f"{len(gone)} objects that this commit relied on were collected meanwhile")


def _text(target: Target) -> str | None:
    return str(target) if target is not None else None
