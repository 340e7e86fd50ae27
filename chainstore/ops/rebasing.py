"""Rebasing: what is kept and builds on what is kept for its sake alone, coded anew so that this can go.

Of a chain of which most snapshots are forgotten nearly everything would stay: each record that is left is a difference
to one that nobody wants, and so on down to the last whole one.  So records that are kept become differences to each
other: to the nearest one before them, the keyframe before, or whole.  Lines that lean on each other (moments, and what
is predicted from them) are judged together: either nothing that they lean on stays, or all of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from chainstore.errors import Damaged, KeyRequired, StoreFull
from chainstore.ids import Kind, ObjectId
from chainstore.model.frame import FLAG_KEYFRAME
from chainstore.observe import Observer, Progress
from chainstore.odb.local import LocalDatabase
from chainstore.odb.rows import as_id
from chainstore.odb.view import View
from chainstore.ops.moving import Target, Turns
from chainstore.ops.reach import Reach
from chainstore.ops.recoding import Recoder, Summary

_WORTH_SHIFT: Final = 6  # 1/64 of the chunks that have to be coded: less is not worth the time
_NEAR: Final = 2  # chunks of a segment that are tried: the deepest may be too deep


class _Spot(NamedTuple):
    """Where in its chain a record is.

    Attributes:
        root: what is stored whole below it.  frame: the keyframe below it, or itself; or the root.
        level: how many keyframes there are from the root to the frame.  run: differences from there.
    """

    root: ObjectId
    frame: ObjectId
    level: int
    run: int


class _Chains:
    """Where records are in their chains; each is looked up once."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._known: dict[bytes, _Spot] = {}

    def spot(self, id: ObjectId) -> _Spot:
        """Return where a record is."""
        above: list[tuple[ObjectId, bool]] = []
        while (spot := self._known.get(id)) is None:
            place = self._view.place(id)
            if place is None or not place.n_bases:
                spot = self._known[id] = _Spot(id, id, 0, 0)
                break
            above.append((id, bool(place.flags & FLAG_KEYFRAME)))
            id = self._view.bases(id)[0]
        for each, keyframe in reversed(above):
            frame, level, run = (each, spot.level + 1, 0) if keyframe else (spot.frame, spot.level, spot.run + 1)
            spot = self._known[each] = _Spot(spot.root, frame, level, run)
        return spot


@dataclass(slots=True)
class _Leaning:
    """A record that is kept and builds on what is not, and records that are kept and may take the place of that."""

    id: ObjectId
    spot: _Spot
    near: tuple[ObjectId, ...] = ()


@dataclass(slots=True)
class Group:
    """Lines that lean on each other.

    Attributes:
        leaning: records to code anew, what comes first in a chain first.
        useless_bytes: of records that nobody needs once that is done.
        saved_bytes: about what is gained, as the lengths of records let us guess.
        plain_bytes: of the chunks that have to be coded.
    """

    leaning: list[_Leaning] = field(default_factory=list)
    useless_bytes: int = 0
    saved_bytes: int = 0
    plain_bytes: int = 0

    @property
    def pays(self) -> bool:
        """Whether it looks as if it were worth the time."""
        return bool(self.leaning) and self.saved_bytes > self.plain_bytes >> _WORTH_SHIFT


def find_groups(view: View, reach: Reach) -> list[Group]:
    """Return what could be coded anew, the most useful first.

    Cost: nothing where all that is kept builds on what is kept; else one scan of the objects.
    """
    only = reach.only_bases
    return _Search(view, reach, only).run() if only else []


class _Search:
    """Looks for groups."""

    def __init__(self, view: View, reach: Reach, only: set[bytes]) -> None:
        self._view, self._reach, self._only = view, reach, only
        self._chains = _Chains(view)
        self._joined: dict[ObjectId, ObjectId] = {}  # root -> one that it is in a group with
        self._kept: dict[ObjectId, list[tuple[int, ObjectId]]] = {}  # frame -> (run, chunk)

    def run(self) -> list[Group]:
        leaning = self._lean()
        groups: dict[ObjectId, Group] = {}
        for id in map(as_id, self._only):
            place = self._view.place(id)
            group = groups.setdefault(self._group(self._chains.spot(id).root), Group())
            group.useless_bytes += place.length if place is not None else 0
        for each in sorted(leaning, key=lambda each: (each.spot.level, each.spot.run)):
            group = groups.setdefault(self._group(each.spot.root), Group())
            group.leaning.append(each)
            self._weigh(each, group)
        for group in groups.values():
            group.saved_bytes += group.useless_bytes
        return sorted((group for group in groups.values() if group.pays), key=lambda group: -group.saved_bytes)

    def _lean(self) -> list[_Leaning]:
        found = []
        view, kept = self._view, self._reach.found
        for id in map(as_id, self._only):
            self._join(id, view.bases(id))
        for id, place in view.objects():
            if not place.n_bases or id not in kept or place.kind != Kind.CHUNK:
                continue
            bases, spot = view.bases(id), self._chains.spot(id)
            self._kept.setdefault(spot.frame, []).append((spot.run, id))
            if any(base not in kept for base in bases):
                self._join(id, bases)
                found.append(_Leaning(id, spot))
        for each in found:
            each.near = tuple(self._near(each))
        return found

    def _join(self, id: ObjectId, bases: tuple[ObjectId, ...]) -> None:
        root = self._group(self._chains.spot(id).root)
        for base in bases[1:]:
            other = self._group(self._chains.spot(base).root)
            if other != root:
                self._joined[other] = root

    def _group(self, root: ObjectId) -> ObjectId:
        while (joined := self._joined.get(root)) is not None:
            root = joined
        return root

    def _near(self, leaning: _Leaning) -> Iterator[ObjectId]:
        """Yield records that are kept and come before one in its chain, the nearest first."""
        id, frame = leaning.id, leaning.spot.frame
        while id != frame:
            id = self._view.bases(id)[0]
            if id in self._reach.found:
                yield id
                return
        while frame != leaning.spot.root:
            frame = self._view.bases(frame)[0]
            beside = sorted(self._kept.get(frame, ()), reverse=True)[:_NEAR]
            yield from (each for _, each in beside)
            if frame in self._reach.found:
                yield frame
                return

    def _weigh(self, leaning: _Leaning, group: Group) -> None:
        """Add what coding a record anew costs; a guess, for nobody looked at a byte yet.

        Differences one after the other change some bytes again and again, so that all of them in one are taken to be
        half as long; and never longer than the whole.
        """
        view = self._view
        place, whole = view.place(leaning.id), view.place(leaning.spot.root)
        if place is None or whole is None:
            return
        group.plain_bytes += place.plain_len
        grown = whole.length
        if leaning.near:
            near = self._chains.spot(leaning.near[0])
            end = leaning.near[0] if near.frame == leaning.spot.frame else near.frame
            between, id = 0, leaning.id
            while id != end and (id := view.bases(id)[0]) != end:
                below = view.place(id)
                between += below.length if below is not None else 0
            grown = place.length + between // 2
        group.saved_bytes -= max(0, min(grown, whole.length) - place.length)


def rebase(db: LocalDatabase, turns: Turns, reach: Reach, target: Target, observer: Observer) -> Summary:
    """Code anew what is kept on top of what is not, wherever that gives bytes back.

    Args:
        reach: what is kept, all bases included; it does not know of the new records afterwards.
    """
    with db.view() as view:
        groups = find_groups(view, reach)
    if not groups:
        return Summary()
    recoder = Recoder(db, turns, target)
    done, total = 0, sum(group.plain_bytes for group in groups)
    try:
        for group in groups:
            if _planned(recoder, group):
                recoder.publish()
            recoder.drop()
            done += group.plain_bytes
            observer(Progress("gc recode", done, total))
    except KeyRequired:
        pass  # whoever may not read chunks leaves them as they are
    except StoreFull:
        recoder.done.full = True
    finally:
        recoder.close()
    return recoder.done


def _planned(recoder: Recoder, group: Group) -> bool:
    """Plan new records of a group, and return whether they are worth it, now that we know their lengths."""
    grown = 0
    for each in group.leaning:
        try:
            items = recoder.items_of(each.spot.root, each.id)
        except Damaged as error:
            recoder.done.problems.append(f"chunk {each.spot.root.short} stays, and what builds on it: {error}")
            return False
        made = recoder.code(each.id, each.near, items)
        if made is None:
            return False
        grown += made.grown_bytes
        if grown >= group.useless_bytes:
            return False
    return True
