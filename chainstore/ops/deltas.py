"""Deltas: what the chunks of a state may be differences to, chosen for each array on a sample.

A chunk pairs with the chunk in its place in the parent: the same path, the same part of the array.  Chains of
differences are bounded: after some of them in a row comes a *keyframe*, a difference to the keyframe before it, and
after `KEYFRAMES` of those a chunk that is stored whole.  So no chunk is further from its bytes than their sum, and
what hardly changes is small all the same.  A keyframe costs several differences; it comes after `SEGMENT` of them, or
later, after at most `LONGEST`, while those since the last one are together shorter than the chunk.

What is chosen is remembered for some commits: an array that was worth a difference is worth one again.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeAlias

from chainstore.codecs.adam_parameters import TOUCHED
from chainstore.codecs.base import ADAM, Against, residual_tag
from chainstore.codecs.chain import Encoder, registered_deltas
from chainstore.errors import Damaged
from chainstore.ids import ObjectId
from chainstore.model.frame import FLAG_KEYFRAME, MAX_DEPTH
from chainstore.model.manifest import Manifest
from chainstore.model.paths import Path
from chainstore.model.spec import Spec
from chainstore.model.tree import Entry
from chainstore.odb.local import LocalDatabase
from chainstore.odb.offer import Base, Choose, Offer
from chainstore.odb.view import View
from chainstore.ops.linking import Input, Link, Memory, find_links
from chainstore.ops.shadow import Shadow
from chainstore.state.leaf import Leaf

Find: TypeAlias = Callable[[Path, int], Base | None]

SEGMENT: Final = 7  # differences after a keyframe: with the keyframe, what a reader may have to fold is 8
LONGEST: Final = 31  # of short ones
KEYFRAMES: Final = 7  # in a row; then everything is stored whole again
KEPT_COMMITS: Final = 16  # that a choice lasts
_ELEMENTS: Final = "chainstore.ops.link_elements"  # needs numpy, so it is loaded when there is an optimizer
_NONE_COMMITS: Final = 4  # that nothing lasts: what does not pay now may in a while


class Choices:
    """Which codec each array was worth, for as long as that is not asked anew; for any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[tuple[Path, tuple[int, ...]], tuple[int | None, int]] = {}  # tag, and commits it is kept for

    def get(self, of: tuple[Path, tuple[int, ...]]) -> tuple[bool, int | None]:
        """Return whether a choice was made, and the tag; None for no difference.

        Args:
            of: the array, and the codecs to choose from.
        """
        made = self._made.get(of)
        return made is not None, made[0] if made is not None else None

    def make(self, of: tuple[Path, tuple[int, ...]], tag: int | None) -> None:
        """Take note of a choice."""
        with self._lock:
            self._made.setdefault(of, (tag, _NONE_COMMITS if tag is None else KEPT_COMMITS))

    def commit(self) -> None:
        """Take note that a commit was made."""
        with self._lock:
            self._made = {of: (tag, left - 1) for of, (tag, left) in self._made.items() if left > 1}


class Lines:
    """What the chunks of one commit may be differences to.

    Args:
        parent: names what is in the snapshot before.
        older: returns the names of the snapshot so many commits before that; None where there is none.
        proved: what earlier commits of the branch proved of its optimizers, from one to the next and from keyframe to
            keyframe.
        shadow: holds what this process stored last; it is kept up to date.  None: everything is read from the store.
        predicting: whether to find out what optimizers did, which takes a core seconds for a gigabyte and saves most.
    """

    def __init__(
        self,
        db: LocalDatabase,
        parent: Manifest,
        older: Callable[[int], Manifest | None],
        choices: Choices,
        proved: tuple[Memory, Memory],
        shadow: Shadow | None,
        predicting: bool = True,
    ) -> None:
        self._predicting = predicting
        self._db, self._parent, self._older = db, parent, older
        self._choices, self._proved, self._shadow = choices, proved, shadow
        self._links: dict[Path, Link] = {}
        self._frame: Manifest | None = None  # the snapshot of the keyframes before, where others are due
        self._frame_links: dict[Path, Link] = {}
        self._find: Find = lambda path, slot: None

    def begin(self, leaves: Sequence[Leaf], find: Find, least_bytes: int) -> list[int]:
        """Look for what optimizers did; return for each leaf in which turn it is stored: after what it follows from.

        Args:
            find: returns a chunk of an array by path and slot, where it has one of its own and that was stored.
            least_bytes: of arrays that have chunks of their own.
        """
        self._find = find
        if not self._predicting:
            return [0] * len(leaves)
        arrays = ParentArrays(self._plain)

        def links(to: Manifest, memory: Memory) -> dict[Path, Link]:
            return find_links(leaves, to, arrays.read, arrays.sample, memory, least_bytes=least_bytes)

        self._links = links(self._parent, self._proved[0])
        if self._is_keyframe_due(leaves):
            self._frame = self._older(SEGMENT)
            if self._frame is not None:
                self._frame_links = links(self._frame, self._proved[1])
        turns: dict[Path, int] = {}

        def turn(path: Path) -> int:
            if path not in turns:
                turns[path] = 0  # also for whoever asks while it is found out
                found = [each for each in (self._links.get(path), self._frame_links.get(path)) if each is not None]
                needed = {each.path for link in found for each in link.bases if each.now}
                turns[path] = max((1 + turn(each) for each in needed), default=0)
            return turns[path]

        linked = self._links.keys() | self._frame_links.keys()
        return [turn(leaf.path) if leaf.path in linked else 0 for leaf in leaves]

    def _is_keyframe_due(self, leaves: Sequence[Leaf]) -> bool:
        """Return whether the largest array of an optimizer, and so nearly all of them, is at the end of a segment."""
        linked = [leaf for leaf in leaves if _is_dense(self._links.get(leaf.path))]
        if not linked:
            return False
        largest = max(linked, key=lambda leaf: leaf.source.nbytes if leaf.source is not None else 0)
        chunk = _chunk(self._parent, largest.path, 0)
        if chunk is None:
            return False
        with self._db.view() as view:
            return run(view, chunk).length >= SEGMENT

    def in_place(self, path: Path, spec: Spec | None, slot: int) -> ObjectId | None:
        """Return the chunk of the parent that has the place of a chunk; None where there is none.

        Args:
            path: of the array it belongs to, the first one of those that share it.
        """
        entry = self._parent.get(path)
        if entry is None or entry.spec != spec or slot >= len(entry.extents):
            return None
        return entry.extents[slot].chunk

    def is_base(self, before: ObjectId, length: int) -> bool:
        """Return whether a chunk of so many bytes can be a difference to the one that had its place."""
        return self._db.length(before) == length

    def unchanged(self, before: ObjectId, data: memoryview) -> bool:
        """Return whether a chunk is known to be the one before it, without a hash; False says nothing."""
        return self._shadow is not None and self._shadow.equals(before, data)

    def stored(self, id: ObjectId, data: memoryview) -> None:
        """Take note of the bytes of a chunk of this commit: the next one is coded against them."""
        if self._shadow is not None:
            self._shadow.keep(id, data)

    def _plain(self, id: ObjectId) -> memoryview:
        held = self._shadow.get(id) if self._shadow is not None else None
        return held if held is not None else self._db.read(id)

    def chooser(self, path: Path, spec: Spec | None, before: ObjectId, slot: int, length: int) -> Choose:
        """Return what chooses how the chunk that follows `before` in an array is stored.

        Args:
            slot: which chunk of the array it is; less than 0 where several arrays share it.
        """

        def choose(encoder: Encoder, data: memoryview) -> list[tuple[Offer, Against]]:
            with self._db.view() as view:
                offers = [
                    offer
                    for offer in self._offers(view, path, spec, before, slot, length)
                    if offer.depth <= MAX_DEPTH and self._are_sound(offer)
                ]
            of = path, tuple(offer.tag for offer in offers)
            known, tag = self._choices.get(of)
            if known:
                offers = [offer for offer in offers if offer.tag == tag]
            try:
                ways = [(offer, offer.against()) for offer in offers]
            except Damaged:
                return []  # nothing must build on it; whoever looks for damage finds it
            if known or not ways:
                return ways
            found = encoder.choose(data, spec, [way for _, way in ways])
            self._choices.make(of, found.tag if found is not None else None)
            return [(offer, way) for offer, way in ways if way is found]

        return choose

    def _are_sound(self, offer: Offer) -> bool:
        """Return whether no read found a base damaged: it may be in memory all the same."""
        ids = frozenset(base.id for base in offer.bases)
        return self._db.unsuspected(ids) == ids

    def _offers(
        self, view: View, path: Path, spec: Spec | None, before: ObjectId, slot: int, length: int
    ) -> Iterator[Offer]:
        link = self._links.get(path) if slot >= 0 else None
        behind = run(view, before)
        keyframe = behind.length >= SEGMENT if _is_dense(link) else behind.is_over(length)
        frame = behind.frame
        base = frame if keyframe else before
        place = view.place(base)
        if place is None or (keyframe and keyframes(view, frame) >= KEYFRAMES):
            return
        first = Base(base, place.depth, _once(lambda: self._plain(base)))
        if keyframe:
            link = self._frame_links.get(path) if slot >= 0 else None
        then = self._frame if keyframe else self._parent
        if link is not None and then is not None and _chunk(then, path, slot) == base:
            others = [self._input(view, then, each, slot, length) for each in link.bases[1:]]
            if all(others):
                yield Offer(ADAM, (first, *(each for each in others if each is not None)), link.parameters, keyframe)
        for tag in (residual_tag(spec), *registered_deltas()):
            yield Offer(tag, (first,), keyframe=keyframe)

    def _input(self, view: View, then: Manifest, wanted: Input, slot: int, length: int) -> Base | None:
        """Return a chunk that a prediction is made of, as it is now or as it was then."""
        if wanted.now:
            return self._find(wanted.path, slot)
        chunk = _chunk(then, wanted.path, slot)
        place = view.place(chunk) if chunk is not None else None
        if chunk is None or place is None or place.plain_len != length:
            return None
        return Base(chunk, place.depth, _once(lambda: self._plain(chunk)))


class ParentArrays:
    """Bytes of the snapshot before, for whoever looks for links."""

    def __init__(self, plain: Callable[[ObjectId], memoryview]) -> None:
        self._plain = plain

    def read(self, entry: Entry) -> bytes:
        """Return all bytes of a small entry."""
        return b"".join(bytes(self._plain(each.chunk)[each.offset :][: each.length]) for each in entry.extents)

    def sample(self, entry: Entry, indices: Any) -> Any:
        """Return the elements of an array at ascending flat indices."""
        return import_module(_ELEMENTS).elements(self._plain, entry, indices)


def _is_dense(link: Link | None) -> bool:
    """Return whether an array is computed anew whole, however short the difference to that is."""
    return link is not None and link.predictor not in TOUCHED


def _chunk(of: Manifest, path: Path, slot: int) -> ObjectId | None:
    """Return a chunk of an array of a snapshot."""
    entry = of.get(path)
    return entry.extents[slot].chunk if entry is not None and slot < len(entry.extents) else None


def _once(read: Callable[[], memoryview]) -> Callable[[], memoryview]:
    """Return a read that is done once, whichever way is tried with its bytes."""
    return lru_cache(maxsize=None)(read)


class Run(NamedTuple):
    """Differences in a row, each to the one before it.

    Attributes:
        length: how many.  nbytes: of their records together.
        frame: the keyframe that they lead to, or what is stored whole.
    """

    length: int
    nbytes: int
    frame: ObjectId

    def is_over(self, plain_len: int) -> bool:
        """Return whether a keyframe comes next, of a chunk of so many bytes.

        A reader goes through all of a run, so what it reads and undoes is bounded twice: in bytes, by those of the
        chunk itself where they are many differences, and in number.
        """
        return self.length >= LONGEST or (self.length >= SEGMENT and self.nbytes > plain_len)


def run(view: View, id: ObjectId) -> Run:
    """Return the differences in a row that lead from a chunk to its keyframe, or to what is stored whole."""
    length = nbytes = 0
    while (place := view.place(id)) is not None and place.n_bases and not place.flags & FLAG_KEYFRAME:
        id, length, nbytes = view.bases(id)[0], length + 1, nbytes + place.length
    return Run(length, nbytes, id)


def keyframes(view: View, id: ObjectId) -> int:
    """Return how many keyframes in a row a keyframe ends, those it is a difference to included."""
    count = 0
    while (place := view.place(id)) is not None and place.n_bases:
        id, count = view.bases(id)[0], count + 1
    return count
