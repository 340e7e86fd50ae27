"""The reader: objects from the store, every byte proven against the id that was asked for.

What turns out damaged is suspect from then on: it counts as not stored, so that the next commit which holds it stores
it again.
"""

from chainstore.codecs.base import RAW_TAGS
from chainstore.errors import Damaged, IdMismatch, WrongRepository
from chainstore.ids import Kind, ObjectId
from chainstore.model.frame import MAX_DEPTH, MAX_HEADER_BYTES, MAX_PAYLOAD, Header, is_record_kind, parse_header
from chainstore.odb.batch import Bench, Benches
from chainstore.odb.in_force import IndexInForce
from chainstore.odb.record import Sealer
from chainstore.odb.rows import Place
from chainstore.odb.view import View
from chainstore.storage.pack import PackDir

_MOST_BASES = 256  # that are looked at to tell whether gc moved something


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

    def read(self, id: ObjectId, out: memoryview | None = None) -> memoryview:
        """Return the plain bytes of an object, verified; in `out` where it is given.

        Raises:
            IdMismatch: missing, or not what was stored; `out` then holds nothing of use.
        """
        before: list[tuple[bytes, Place | None]] = []
        while True:
            try:
                found = self._read(id, out, MAX_DEPTH + 1, {})
            except (Damaged, WrongRepository) as error:
                now = self._whereabouts(id)
                if now == before or not now:
                    self.suspects.add(id)
                    if isinstance(error, IdMismatch):
                        raise
                    raise IdMismatch(str(id), str(error)) from error
                before = now  # gc may have moved it while we read: it is looked up once more
            else:
                if before:
                    self.suspects.difference_update(ObjectId(base) for base, _ in before)
                return found

    def _whereabouts(self, id: ObjectId) -> list[tuple[bytes, Place | None]]:
        """Return where an object and everything it builds on lie now; [] where the index cannot tell."""
        found: list[tuple[bytes, Place | None]] = []
        try:
            with self._index.read() as rows:
                view = View(self._index.seen(rows), self._sealer)
                queue = [id]
                while queue and len(found) < _MOST_BASES:
                    place = view.place(queue[0])
                    found.append((queue.pop(0), place))
                    queue += view.bases(found[-1][0]) if place is not None and place.n_bases else ()
        except Damaged:
            return []  # the read says so itself
        return found

    def _read(self, id: ObjectId, out: memoryview | None, below: int, known: dict[ObjectId, memoryview]) -> memoryview:
        """Return an object whose record has less depth than `below`; `known` holds the bases read so far."""
        bench = self._benches.take("auto")
        try:
            header, payload = self._fetch(bench, id)
            if header.depth >= below:
                raise IdMismatch(str(id), "it is no base for what refers to it")
            for base in header.bases:
                if base not in known:
                    known[base] = self._read_base(base, header.depth, known)
            target = out if out is not None else memoryview(bytearray(header.plain_len))
            if len(target) != header.plain_len:
                raise IdMismatch(str(id), f"it has {header.plain_len} bytes where {len(target)} are wanted")
            self._decode(bench, header, payload, target, [known[base] for base in header.bases])
        finally:
            self._benches.give_back(bench)
        if self._sealer.id(Kind(header.kind), target) != id:
            raise IdMismatch(str(id), "its bytes do not hash to its id")
        return target

    def _read_base(self, id: ObjectId, below: int, known: dict[ObjectId, memoryview]) -> memoryview:
        try:
            return self._read(id, None, below, known)
        except (Damaged, WrongRepository):
            self.suspects.add(id)
            raise

    def _fetch(self, bench: Bench, id: ObjectId) -> tuple[Header, memoryview]:
        """Return header and sealed payload of an object's record, which lies in the bench's memory."""
        with self._index.read() as rows:
            view = View(self._index.seen(rows), self._sealer)
            place = view.place(id)
            if place is None:
                raise IdMismatch(str(id), "it is not in the store")
            inline = view.inline(id)
            pack = view.pack(place.pack).pack if inline is None else b""
        if inline is not None:
            record = memoryview(inline)
        else:
            record = bench.room("record", min(place.length, MAX_PAYLOAD + MAX_HEADER_BYTES))
            record = record[: self._packs.read_into(pack, place.offset, record)]
        header = parse_header(record[:MAX_HEADER_BYTES], "record", place.offset)
        end = header.header_bytes + header.stored_len
        if header.id != id or not is_record_kind(header.kind) or len(record) < end:
            raise IdMismatch(str(id), "another record stands in its place")
        return header, record[header.header_bytes : end]

    def _decode(
        self, bench: Bench, header: Header, payload: memoryview, target: memoryview, bases: list[memoryview]
    ) -> None:
        """Fill `target` with the plain bytes of a record; nothing proves them yet."""
        raw = header.codecs == RAW_TAGS and not bases
        if raw and self._sealer.sealed_bytes(len(target)) != len(payload):
            raise IdMismatch(str(header.id), "its record has another length than it says")
        into_target = raw and self._sealer.encrypted
        encoded = self._sealer.open(header, payload, target if into_target else bench.room("opened", len(payload)))
        if not into_target:
            bench.decoder.decode(header.codecs, encoded, target, bases)
