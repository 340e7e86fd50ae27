"""Scouting: whether differences to the snapshot before would pay, found out now and then on a few samples.

With `codec="auto"` nobody asked for differences, and where every value changes at each step they cost a core seconds
for a gigabyte, and memory for what was there before.  Where few values change (embeddings, experts, slow weights) they
save nearly everything and more time than they take.  So a look at some large arrays tells, and lasts for a while.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from chainstore.codecs.base import Against, residual_tag
from chainstore.codecs.chain import Encoder
from chainstore.codecs.thrift import Thrift
from chainstore.errors import Damaged
from chainstore.model.manifest import Manifest
from chainstore.odb.local import LocalDatabase
from chainstore.state.chunking import chunk_length, ranges
from chainstore.state.leaf import Leaf

LOOK_EVERY: Final = 32  # commits
_ARRAYS: Final = 8  # that are looked at: every so-many-th of the large ones
_LEAST_BYTES: Final = 256 << 10  # of an array that counts as large
_SAMPLE_BYTES: Final = 256 << 10
_ENOUGH: Final = 0.05  # the share of what was looked at that must be worth it


class Scout:
    """Remembers for some commits whether differences pay; for one thread at a time."""

    def __init__(self) -> None:
        self._left, self._wanted = 0, False
        self._encoder: Encoder | None = None

    def wants(
        self, db: LocalDatabase, parent: Callable[[], Manifest | None], leaves: Sequence[Leaf], thrift: Thrift
    ) -> bool:
        """Return whether the chunks of a commit should be offered as differences to those of its parent.

        Args:
            parent: returns the names of the snapshot before, if they read; asked only when it is time to look.
        """
        if not thrift.known:
            return False
        if self._left:
            self._left -= 1
            return self._wanted
        names = parent()
        if names is None:
            return False
        self._encoder = self._encoder or Encoder("auto")
        seen = worth = 0
        for leaf, now, before in _samples(db, names, leaves):
            seen += len(now)
            worth += len(now) * self._is_worth_it(leaf, now, before, thrift)
        if seen:  # else nothing that is large changed, and the next commit may tell more
            self._wanted, self._left = worth >= _ENOUGH * seen, LOOK_EVERY
        return self._wanted

    def _is_worth_it(self, leaf: Leaf, now: memoryview, before: memoryview, thrift: Thrift) -> bool:
        assert self._encoder is not None
        way = Against(residual_tag(leaf.spec), (before,))
        alone = len(self._encoder.encode(now, leaf.spec).payload)  # and warm up
        started = time.thread_time()
        coded = self._encoder.encode(now, leaf.spec, [way])
        taken = time.thread_time() - started
        if coded.against is None or len(coded.payload) > alone / 2:  # chains cost whoever reads them
            return False
        return thrift.pays(len(now), taken, len(now) - len(coded.payload))


def _samples(
    db: LocalDatabase, parent: Manifest, leaves: Sequence[Leaf]
) -> Iterator[tuple[Leaf, memoryview, memoryview]]:
    """Yield parts of some large arrays that changed, as they are and as they were."""
    large = [
        leaf
        for leaf in leaves
        if leaf.spec is not None and leaf.source is not None and leaf.source.nbytes >= _LEAST_BYTES
    ]
    for leaf in large[:: max(1, len(large) // _ARRAYS)]:
        assert leaf.source is not None
        entry = parent.get(leaf.path)
        cuts = list(ranges(leaf.source.nbytes, chunk_length(leaf.spec)))
        if entry is None or entry.spec != leaf.spec or len(entry.extents) != len(cuts):
            continue
        slot = len(cuts) // 2
        extent, (start, stop) = entry.extents[slot], cuts[slot]
        try:
            before = db.read(extent.chunk)[extent.offset :][: extent.length]
        except Damaged:
            continue  # whoever looks for damage finds it
        now = leaf.source.read(start, min(stop, start + _SAMPLE_BYTES))
        if extent.length == stop - start and now != before[: len(now)]:
            yield leaf, now, before[: len(now)]
