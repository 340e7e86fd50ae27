"""The memory in which records that build on each other are decoded, none of it taken twice where once will do.

Records of a line (see `folding.lines`) have that of the last one, from the bottom up: what a codec can do in place then
costs neither a second buffer nor a copy, and the last one is already where the caller wants it.
"""

from collections.abc import Mapping

from chainstore.errors import IdMismatch
from chainstore.ids import ObjectId
from chainstore.model.frame import Header
from chainstore.odb.batch import Bench
from chainstore.odb.folding import Nodes, lines


class DecodeMemory:
    """Where objects are decoded: what was asked for in the caller's memory, the rest in buffers of a bench.

    Args:
        once: nothing is decoded twice; only then records of a line can have the same memory.

    Attributes:
        found: what was asked for and is decoded, or being decoded.
    """

    def __init__(self, bench: Bench, nodes: Nodes, wanted: Mapping[ObjectId, memoryview | None], *, once: bool) -> None:
        self._bench, self._wanted = bench, wanted
        self._last: dict[ObjectId, ObjectId] = {}
        for id, last in lines(nodes, wanted).items() if once and len(nodes) > 1 else ():
            out = wanted.get(last)
            if out is None or len(out) == nodes[last].nbytes:
                self._last[id] = last
        self._held: dict[ObjectId, memoryview] = {}
        self._taken: dict[ObjectId, int] = {}
        self._free: list[int] = []
        self.found: dict[ObjectId, memoryview] = {}

    def take(self, header: Header, moves: bool) -> tuple[memoryview, list[memoryview]]:
        """Return memory for an object, and its bases, of which the only one may lie there too if the codec `moves` it.

        Raises:
            IdMismatch: it is not as long as it must be.
        """
        id = header.id
        last = self._last.get(id, id)
        target = self._held.get(last)
        if target is None:
            target = self._held[last] = self._new(last, header.plain_len)
        if len(target) != header.plain_len:
            raise IdMismatch(str(id), f"it has {header.plain_len} bytes where {len(target)} are wanted")
        bases = [self._held[self._last.get(base, base)] for base in header.bases]
        if len(bases) == 1 and bases[0] is target and not moves:
            aside = self._bench.room("aside", len(target))
            aside[:] = target
            bases = [aside]
        if id in self._wanted:
            self.found[id] = target
        return target, bases

    def let_go(self, id: ObjectId) -> None:
        """Take back the memory of an object, unless what builds on it has it now."""
        if self._last.get(id, id) == id:
            del self._held[id]
            self._free.append(self._taken.pop(id))

    def _new(self, id: ObjectId, nbytes: int) -> memoryview:
        if id in self._wanted:
            out = self._wanted[id]
            return out if out is not None else memoryview(bytearray(nbytes))
        number = self._taken[id] = self._free.pop() if self._free else len(self._taken)
        return self._bench.room(f"plain {number}", nbytes)
