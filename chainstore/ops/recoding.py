"""Recoding: records that take the place of others of the same chunks, as other differences or whole.

What replaces a record was decoded and compared first, since nothing else holds these bytes afterwards.  Whatever builds
on a chunk must go on to be deeper, so the depth of its new record is no more than that of the old one, unless nothing
builds on it: then the same line of the log says that the old one is dead.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from chainstore.codecs.base import DIFFERENCE, XOR, Against, ItemSpec
from chainstore.codecs.chain import items_in
from chainstore.errors import Damaged, FormatTooNew, StoreFull
from chainstore.ids import Kind, ObjectId
from chainstore.model.change import Dead
from chainstore.model.frame import Header, frame_record, split_record
from chainstore.odb.local import LocalDatabase
from chainstore.odb.rows import Place, Placed, merged
from chainstore.odb.view import View
from chainstore.ops.deltas import KEYFRAMES, keyframes, run
from chainstore.ops.moving import Target, Turns, lies_at

EFFORT: Final = "small"
LINE_BYTES: Final = 8 << 20  # of records that one line of the log puts in the place of others
_HELD_BYTES: Final = 32 << 20  # of chunks that were read and may be wanted again


@dataclass(frozen=True, slots=True)
class Recoded:
    """A record that is to take the place of another one of the same chunk, which lies at `before`."""

    header: Header
    payload: bytes
    before: Place

    @property
    def grown_bytes(self) -> int:
        """By which it is longer."""
        return self.header.record_bytes - self.before.length


@dataclass(slots=True)
class Summary:
    """What was coded anew, as far as it was published.

    Attributes:
        chunks: how many.  nbytes: of their new records.  saved_bytes: by which the old ones were longer.
        problems: what could not be read, and stays as it is.
        full: whether something was left for want of space.
    """

    chunks: int = 0
    nbytes: int = 0
    saved_bytes: int = 0
    problems: list[str] = field(default_factory=list)
    full: bool = False


class Planned(View):
    """A view in which some records were replaced already."""

    def __init__(self, view: View, planned: Mapping[bytes, Recoded]) -> None:
        self._view, self._planned = view, planned

    def place(self, id: bytes) -> Place | None:
        """Return where an object is, depth and bases being what they will be."""
        new = self._planned.get(id)
        if new is None:
            return self._view.place(id)
        header = new.header
        return new.before._replace(flags=header.flags, depth=header.depth, n_bases=len(header.bases))

    def bases(self, id: bytes) -> tuple[ObjectId, ...]:
        """Return the bases that an object's record will have."""
        new = self._planned.get(id)
        return self._view.bases(id) if new is None else new.header.bases


class Recoder:
    """Codes chunks anew and puts the new records in the place of the old ones.

    Args:
        turns: gives turns at publishing, in which everything published before was looked at.
        is_base: tells of a chunk whether any record builds on it, published ones; None where depths are not to grow.

    Attributes:
        planned: records that were made and not published yet.
        done: what was published.
    """

    def __init__(
        self, db: LocalDatabase, turns: Turns, target: Target, is_base: Callable[[ObjectId], bool] | None = None
    ) -> None:
        self._db, self._turns, self._target, self._is_base = db, turns, target, is_base
        self._bench = db.benches.take(EFFORT)
        self._held: dict[ObjectId, memoryview] = {}
        self.planned: dict[bytes, Recoded] = {}
        self.done = Summary()

    @property
    def planned_bytes(self) -> int:
        """Bytes of the records that were made and not published yet."""
        return sum(each.header.record_bytes for each in self.planned.values())

    def close(self) -> None:
        """Give up what is used for it."""
        self._held.clear()
        self._db.benches.give_back(self._bench)

    def code(self, chunk: ObjectId, near: Sequence[ObjectId], items: ItemSpec | None) -> Recoded | None:
        """Return a new record of a chunk, and note it as planned; None where it cannot be read, or is not there.

        Args:
            near: chunks that it may be like, the likeliest first.
        """
        with self._db.view() as view:
            before = view.place(chunk)
            if before is None:
                return None
            deeper = self._is_base is not None and not self._is_base(chunk)
            found = next(_bases(Planned(view, self.planned), before, near, deeper), None)
        try:
            made = self._made(chunk, before, found, items)
        except (Damaged, FormatTooNew) as error:
            self.done.problems.append(f"chunk {chunk.short} and what it builds on stay as they are: {error}")
            return None
        self.planned[chunk] = made
        return made

    def drop(self, *chunks: ObjectId) -> None:
        """Forget what was planned for these chunks, on which nothing that is planned builds; for all without any."""
        for chunk in chunks:
            del self.planned[chunk]
        if not chunks:
            self.planned.clear()

    def publish(self) -> None:
        """Put what was planned in the place of what is there, as far as that is still the same.

        Raises:
            StoreFull: what was published by then stays so.
        """
        every = sorted(self.planned.values(), key=lambda each: each.header.depth)  # bases first
        while every:
            count = nbytes = 0
            while count < len(every) and (not count or nbytes + every[count].header.record_bytes <= LINE_BYTES):
                nbytes += every[count].header.record_bytes
                count += 1
            self._publish(every[:count], nbytes)
            del every[:count]
        self.planned.clear()

    def items_of(self, *chunks: ObjectId) -> ItemSpec | None:
        """Return what the first of these chunks was taken for when it was stored whose record says so."""
        for chunk in chunks:
            with self._db.view() as view:
                place = view.place(chunk)
                pack = view.pack(place.pack).pack if place is not None else b""
                record = view.inline(chunk)
            if place is None:
                continue
            if record is None:
                room = bytearray(place.length)
                record = bytes(room[: self._db.packs.read_into(pack, place.offset, memoryview(room))])
            header, payload = split_record(memoryview(record), f"pack {pack.hex()}", place.offset)
            encoded = self._db.sealer.open(header, payload, bytearray(len(payload)))
            items = items_in(header.codecs, encoded)
            if items is not None:
                return items
        return None

    def _made(
        self, chunk: ObjectId, before: Place, found: tuple[ObjectId, int, bool] | None, items: ItemSpec | None
    ) -> Recoded:
        plain = self._read(chunk)
        ways: list[Against] = []
        if found is not None:
            base = self._read(found[0])
            ways = [Against(tag, (base,)) for tag in (DIFFERENCE, XOR)]
        chosen = self._bench.encoder.choose(plain, items, ways) if ways else None
        encoded = self._bench.encoder.encode(plain, items, [chosen] if chosen is not None else [])
        uses = encoded.against
        again = self._bench.room("again", len(plain))
        self._bench.decoder.decode(encoded.tags, encoded.payload, again, uses.bases if uses is not None else ())
        if bytearray(again) != plain:
            raise Damaged("it would not come back as it is")
        id, depth, keyframe = found if found is not None and uses is not None else (None, 0, False)
        sealer = self._db.sealer
        header, payload = sealer.seal(
            Kind(before.kind),
            chunk,
            len(plain),
            encoded.tags,
            encoded.payload,
            self._bench.room("sealed", sealer.sealed_bytes(len(encoded.payload))),
            depth=depth,
            bases=() if id is None else (id,),
            keyframe=keyframe,
        )
        return Recoded(header, bytes(payload), before)

    def _read(self, chunk: ObjectId) -> memoryview:
        plain = self._held.pop(chunk, None)
        self._held[chunk] = plain = self._db.read(chunk) if plain is None else plain
        while len(self._held) > 2 and sum(map(len, self._held.values())) > _HELD_BYTES:
            del self._held[next(iter(self._held))]
        return plain

    def _publish(self, records: Sequence[Recoded], nbytes: int) -> None:
        try:
            self._target.make_room(nbytes)
            placed = [self._target.write(each.header, frame_record(each.header, each.payload)) for each in records]
            changes = self._target.finish()
            with ExitStack() as held:
                packs = self._hold({each.before.pack for each in records}, held) if self._is_base is not None else {}
                with self._turns() as turn:
                    with turn.view() as view:
                        fit = list(self._fitting(view, records, placed, packs))
                    for name in packs.values():
                        ranges = [(b.offset, b.offset + b.length) for _, b in fit if packs.get(b.pack) == name]
                        changes += [Dead(name, merged(ranges))] if ranges else []
                    turn.publish(changes, lambda growth: [new for new, _ in fit], lambda change: ())
        except StoreFull:
            self._target.close()  # what is in it now may be anything
            raise
        self._target.published()
        self.done.chunks += len(fit)
        self.done.nbytes += sum(new.header.record_bytes for new, _ in fit)
        self.done.saved_bytes += sum(before.length - new.header.record_bytes for new, before in fit)

    def _hold(self, numbers: set[int], held: ExitStack) -> dict[int, bytes]:
        """Hold packs until `held` ends; return number and name of those that nobody writes to."""
        with self._db.view() as view:
            names = {number: view.pack(number).pack for number in numbers}
        for number, name in list(names.items()):
            file = self._db.packs.take_over(name)
            if file is None:
                del names[number]
            else:
                held.enter_context(file)
        return names

    def _fitting(
        self, view: View, records: Sequence[Recoded], placed: Sequence[Placed], packs: Mapping[int, bytes]
    ) -> Iterator[tuple[Placed, Place]]:
        """Yield those records that will take the place of others, as the index will have it: bases come first."""
        planned: dict[bytes, Recoded] = {}
        seen = Planned(view, planned)
        for new, each in zip(placed, records, strict=True):
            id, now = each.header.id, view.place(each.header.id)
            if now is None or not lies_at(now, each.before.pack, each.before.offset):
                continue  # stored again meanwhile, or moved
            if each.header.depth > now.depth and (self._is_base is None or self._is_base(id) or now.pack not in packs):
                continue
            below = [seen.place(base) for base in each.header.bases]
            if all(base is not None and base.depth < each.header.depth for base in below):
                planned[id] = each
                yield new, now


def _bases(view: View, before: Place, near: Sequence[ObjectId], deeper: bool) -> Iterator[tuple[ObjectId, int, bool]]:
    """Yield what a chunk may be a difference to instead, the depth it then has, and whether it is a keyframe."""
    for chunk in near:
        behind = run(view, chunk)
        keyframe = behind.is_over(before.plain_len)
        frame = behind.frame
        base = frame if keyframe else chunk
        place = view.place(base)
        if place is None or place.plain_len != before.plain_len or not (deeper or place.depth < before.depth):
            continue
        if not keyframe or keyframes(view, frame) < KEYFRAMES:
            yield base, place.depth + 1, keyframe
