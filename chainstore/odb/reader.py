"""The reader: objects from the store, every byte that is handed out proven against the id that was asked for.

What turns out damaged is suspect from then on: it counts as not stored, so that the next commit which holds it stores
it again.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from chainstore.codecs.base import RAW_TAGS
from chainstore.errors import Damaged, IdMismatch, WrongRepository
from chainstore.ids import Kind, ObjectId
from chainstore.model.frame import MAX_HEADER_BYTES, MAX_PAYLOAD, Header, is_record_kind, parse_header
from chainstore.odb.batch import Bench, Benches
from chainstore.odb.decode_memory import DecodeMemory
from chainstore.odb.folding import FOLD_BYTES, Node, Nodes, Step, below, built_on, lay_out, misfit, schedule
from chainstore.odb.in_force import IndexInForce
from chainstore.odb.record import Sealer
from chainstore.odb.rows import is_inline
from chainstore.odb.view import View
from chainstore.storage.pack import PackDir

Wanted = Mapping[ObjectId, memoryview | None]
"""Objects to read, each with the memory that its bytes are to fill, exactly as long; None for memory of its own."""


class _Source(NamedTuple):
    """Where the bytes of a record are: in a pack, or whole in the index."""

    node: Node
    pack: bytes
    inline: bytes | None


class _Fault(Exception):
    """An object does not read: `id` is the one to blame, `why` says what is wrong with it."""

    def __init__(self, id: ObjectId, why: str) -> None:
        self.id, self.why = id, why


class ObjectReader:
    """Reads objects by id; any number of threads at once.

    Attributes:
        suspects: ids of objects that a read found damaged.
    """

    def __init__(self, index: IndexInForce, packs: PackDir, sealer: Sealer, benches: Benches) -> None:
        self._index, self._packs, self._sealer, self._benches = index, packs, sealer, benches
        self.suspects: set[ObjectId] = set()

    def has(self, id: ObjectId) -> bool:
        """Whether an object is stored; a suspect is not."""
        if id in self.suspects:
            return False
        with self._index.read() as rows:
            return self._index.seen(rows).get("objects", id) is not None

    def length(self, id: ObjectId) -> int:
        """Return the plain bytes of an object as the index has them; -1 where it is not stored."""
        with self._index.read() as rows:
            place = View(self._index.seen(rows), self._sealer).place(id)
        return place.plain_len if place is not None else -1

    def lay_out(self, ids: Iterable[ObjectId]) -> dict[ObjectId, Node]:
        """See `folding.lay_out`."""
        with self._index.read() as rows:
            return lay_out(View(self._index.seen(rows), self._sealer), ids)

    def read(self, id: ObjectId, out: memoryview | None = None) -> memoryview:
        """Return the plain bytes of an object, verified; in `out` where it is given.

        Raises:
            IdMismatch: missing, or not what was stored; `out` then holds nothing of use.
        """
        return self.read_together({id: out})[id]

    def read_together(
        self, wanted: Wanted, room: int = FOLD_BYTES, nodes: Nodes | None = None
    ) -> dict[ObjectId, memoryview]:
        """Return the plain bytes of objects, verified; what several of them build on is decoded once.

        Args:
            room: bytes that may be held beside `wanted`; where they do not suffice, more is decoded again.
            nodes: what `lay_out` said of them a while ago, perhaps among others; they are looked up again only where
                they do not read like that.

        Raises:
            IdMismatch: one of them is missing, or not what was stored, or what it builds on is not: `base` then says
                which.  All of the memory then holds nothing of use.
        """
        return self._read(wanted, wanted, room, nodes)[1]

    def prove(self, ids: Iterable[ObjectId], room: int = FOLD_BYTES) -> int:
        """Decode objects, and what they build on, each once and none kept, and return how many bytes `ids` have.

        Raises:
            IdMismatch: see `read_together`.
        """
        asked: Wanted = dict.fromkeys(ids)
        nodes, _ = self._read(asked, {}, room)
        return sum(nodes[id].nbytes for id in asked)

    def _read(
        self, asked: Wanted, kept: Wanted, room: int, known: Nodes | None = None
    ) -> tuple[Nodes, dict[ObjectId, memoryview]]:
        before: Nodes = {}
        while True:
            nodes: Nodes = {}
            try:
                with self._index.read() as rows:
                    view = View(self._index.seen(rows), self._sealer)
                    nodes = lay_out(view, asked) if known is None or before else below(known, asked)
                    sources = self._sources(view, nodes)
                return nodes, self._fold(nodes, sources, kept, room, prove_all=bool(before) or not kept)
            except _Fault as fault:
                if nodes == before:  # else gc may have moved it while we read: it is looked up once more
                    raise self._blamed(nodes, asked, fault) from fault.__cause__
                before = nodes
            except Damaged as error:  # the index itself
                self.suspects.update(asked)
                raise IdMismatch(str(next(iter(asked))), str(error)) from error

    def _blamed(self, nodes: Nodes, asked: Wanted, fault: _Fault) -> IdMismatch:
        """Return the error that tells of a fault, having noted what cannot be read because of it."""
        hit = built_on(nodes, fault.id)
        self.suspects |= hit
        if fault.id in asked:
            return IdMismatch(str(fault.id), fault.why)
        first = next(id for id in asked if id in hit)
        why = f"its base {fault.id.short} is damaged: {fault.why}"
        return IdMismatch(str(first), why, base=str(fault.id))

    def _sources(self, view: View, nodes: Nodes) -> dict[ObjectId, _Source]:
        found: dict[ObjectId, _Source] = {}
        packs: dict[int, bytes] = {}
        for node in nodes.values():
            place, pack = node.place, b""
            if place is None:
                raise _Fault(node.id, "it is not in the store")
            inline = view.inline(node.id) if is_inline(place.kind, place.length) else None
            if inline is None:
                try:
                    pack = packs[place.pack] = packs.get(place.pack) or view.pack(place.pack).pack
                except Damaged as error:
                    raise _Fault(node.id, str(error)) from error
            found[node.id] = _Source(node, pack, inline)
        return found

    def _fold(
        self, nodes: Nodes, sources: Mapping[ObjectId, _Source], wanted: Wanted, room: int, prove_all: bool
    ) -> dict[ObjectId, memoryview]:
        """Decode everything that `wanted` build on, and them.

        Args:
            prove_all: look at the ids of bases too, so that a fault is told of the record that is damaged.  Else only
                what is handed out is proven: bytes that hash to their id prove what they were made of.
        """
        bench = self._benches.take("auto")
        try:
            steps = _steps(nodes, wanted, room)
            memory = DecodeMemory(bench, nodes, wanted, once=len(steps) == len(nodes))
            for node, dropped in steps:
                for id in dropped:
                    memory.let_go(id)
                id = node.id
                try:
                    header, head, payload = self._fetch(bench, sources[id])
                    target, bases = memory.take(header, bench.decoder.moves(header.codecs))
                    self._decode(bench, header, head, payload, target, bases)
                    if (prove_all or id in wanted) and self._sealer.id(Kind(header.kind), target) != id:
                        raise IdMismatch(str(id), "its bytes do not hash to its id")
                except (Damaged, WrongRepository) as error:
                    why = error.why if isinstance(error, IdMismatch) and error.id == str(id) else str(error)
                    raise _Fault(id, why) from error
            return memory.found
        finally:
            self._benches.give_back(bench)

    def _fetch(self, bench: Bench, source: _Source) -> tuple[Header, memoryview, memoryview]:
        """Return the header of an object's record, as bytes too, and its sealed payload, in the bench's memory."""
        (id, place, bases), pack, inline = source
        assert place is not None
        if inline is not None:
            record = memoryview(inline)
        else:
            record = bench.room("record", min(place.length, MAX_PAYLOAD + MAX_HEADER_BYTES))
            record = record[: self._packs.read_into(pack, place.offset, record)]
        header = parse_header(record[:MAX_HEADER_BYTES], "record", place.offset)
        end = header.header_bytes + header.stored_len
        if header.id != id or not is_record_kind(header.kind) or len(record) < end:
            raise IdMismatch(str(id), "another record stands in its place")
        if header.bases != bases:
            raise IdMismatch(str(id), "it builds on other objects than the index says")
        return header, record[: header.header_bytes], record[header.header_bytes : end]

    def _decode(
        self,
        bench: Bench,
        header: Header,
        head: memoryview,
        payload: memoryview,
        target: memoryview,
        bases: list[memoryview],
    ) -> None:
        """Fill `target` with the plain bytes of a record; nothing proves them yet."""
        raw = header.codecs == RAW_TAGS and not bases
        if raw and self._sealer.sealed_bytes(len(target)) != len(payload):
            raise IdMismatch(str(header.id), "its record has another length than it says")
        into_target = raw and self._sealer.encrypted
        opened = target if into_target else bench.room("opened", len(payload))
        encoded = self._sealer.open(header, payload, opened, head)
        if not into_target:
            bench.decoder.decode(header.codecs, encoded, target, bases)


def _steps(nodes: Nodes, wanted: Wanted, room: int) -> list[Step]:
    if len(nodes) == 1:  # most reads
        return [Step(node, ()) for node in nodes.values()]
    wrong = misfit(nodes)
    if wrong is not None:
        raise _Fault(*wrong)
    return schedule(nodes, wanted, room)
