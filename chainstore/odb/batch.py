"""A batch: objects on their way into the local store.

Hash first: an object that is known costs a hash and a look-up.  Everything else is encoded, sealed and appended to
packs that this batch holds; publishing names their new lengths in the log, and closing gives the packs back.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from chainstore.codecs.base import DIFFERENCE, XOR, Encoded
from chainstore.codecs.chain import Decoder, Encoder
from chainstore.codecs.thrift import LEAST_WRITTEN, Thrift, seconds_in_line
from chainstore.errors import ForkedHandle, StorageError
from chainstore.ids import Kind, ObjectId
from chainstore.model.change import PackGrown
from chainstore.model.frame import Buffer, Header, frame_record
from chainstore.model.spec import Spec
from chainstore.odb.offer import Choose, Offer
from chainstore.odb.record import Sealer
from chainstore.odb.rows import Placed, is_inline
from chainstore.storage.pack import PackWriter, salvage

PLAIN_DELTAS = frozenset({XOR, DIFFERENCE})  # without arithmetic that could come out otherwise
_LOOK_AT_EVERY = 64
SYNC_BYTES = 32 << 20  # written but not yet synced: enough to keep a disk busy, little enough to wait for at the end


class Bench:
    """The reused buffers of one thread: coder, decoder, and room for sealed and opened payloads."""

    def __init__(self, codec: str, thrift: Thrift | None = None) -> None:
        self.codec = codec
        self.encoder = Encoder(codec, thrift)
        self.decoder = Decoder()
        self._rooms: dict[str, bytearray] = {}

    def room(self, name: str, nbytes: int) -> memoryview:
        """Return a buffer of exactly `nbytes`, the same memory at every call for `name` as long as it suffices."""
        room = self._rooms.get(name)
        if room is None or len(room) < nbytes:
            room = self._rooms[name] = bytearray(max(nbytes, 1 << 16))
        return memoryview(room)[:nbytes]


class Benches:
    """Benches that are lent to whichever thread needs one; never more than were needed at once.

    Attributes:
        thrift: what is known of the speeds of coder and disk.
    """

    def __init__(self) -> None:
        self.thrift = Thrift()
        self._idle: list[Bench] = []
        self._lock = threading.Lock()

    def take(self, codec: str) -> Bench:
        """Return a bench that nobody else uses until it is given back."""
        with self._lock:
            for bench in self._idle:
                if bench.codec == codec:
                    self._idle.remove(bench)
                    return bench
        return Bench(codec, self.thrift)

    def give_back(self, bench: Bench) -> None:
        """Take a bench back; what it last returned is then no longer valid."""
        with self._lock:
            self._idle.append(bench)
            del self._idle[:-8]  # a few are kept; codecs that are no longer asked for fall out


@dataclass(frozen=True, slots=True)
class Stored:
    """What became of an object: its id, the bytes it took, 0 where it was known, and whether as a difference."""

    id: ObjectId
    stored: int
    delta: bool = False


class LocalBatch:
    """Objects that were appended to packs of this machine and wait to be published.

    Args:
        known: whether an object is in the index.
        open_pack: gives a pack to append to, its flock held.
        take_back: takes the packs of a batch that was closed.
        codec: "auto", "none", "fast" or "small".
        depth_of: returns the depth of an object's record by the index; None where it is not stored.
    """

    def __init__(
        self,
        sealer: Sealer,
        benches: Benches,
        codec: str,
        known: Callable[[ObjectId], bool],
        open_pack: Callable[[], PackWriter],
        take_back: Callable[["LocalBatch"], None] | None = None,
        depth_of: Callable[[ObjectId], int | None] = lambda id: None,
    ) -> None:
        self._sealer, self._benches, self._codec = sealer, benches, codec
        self._known, self._open_pack, self._take_back = known, open_pack, take_back
        self._depth_of = depth_of
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._trusted: frozenset[ObjectId] = frozenset()
        self._claimed: set[ObjectId] = set()
        self._relied: set[ObjectId] = set()
        self._packs: list[PackWriter] = []
        self._placed: dict[bytes, list[Placed]] = {}
        self._contents: dict[bytes, int] = {}
        self._broken = False
        self._depths: dict[ObjectId, int] = {}
        self._differences = 0  # made so far
        self._disk_seconds, self._disk_bytes = 0.0, 0  # not told of yet

    def trust(self, ids: Iterable[ObjectId]) -> None:
        """Take these as known without a look: a parent that must still be the tip when we publish names them."""
        self._trusted = frozenset(ids)

    @property
    def relied(self) -> frozenset[ObjectId]:
        """Ids that were only found in the index: publishing checks that they still are."""
        return frozenset(self._relied)

    @property
    def broken(self) -> bool:
        """Whether something could not be stored: then this batch must not be published."""
        return self._broken

    @property
    def stored(self) -> dict[ObjectId, Header]:
        """The headers of the records that this batch holds, by id."""
        return {placed.header.id: placed.header for placed in self._every()}

    @property
    def packs(self) -> tuple[PackWriter, ...]:
        """The packs that this batch holds."""
        return tuple(self._packs)

    def append(self, kind: Kind, plain: Buffer, spec: Spec | None = None, choose: Choose | None = None) -> Stored:
        """Store an object unless it is known.

        Args:
            choose: returns what it may be stored as a difference to; asked only where it is not known.

        Raises:
            StoreFull, StorageError: it could not be written; the batch is of no use any more.
        """
        self._check_usable()
        started = time.thread_time()
        id = self._sealer.id(kind, plain)
        hashed = time.thread_time() - started
        if not self._claim(id):
            return Stored(id, 0)
        bench = self._benches.take(self._codec if kind is Kind.CHUNK else "auto")
        try:
            view = memoryview(plain).cast("B")
            encoded, offer = self._code(bench, view, spec, choose)
            started = time.thread_time()
            header, payload = self._seal(bench, kind, id, len(view), encoded, offer)
            if kind is Kind.CHUNK:
                self._benches.thrift.handled(len(view), hashed + time.thread_time() - started)
            return Stored(id, self._put(header, payload), bool(header.bases))
        except BaseException:
            self._broken = True  # the object is claimed but not there, and its place in the pack may hold anything
            raise
        finally:
            self._benches.give_back(bench)

    def rely(self, id: ObjectId) -> bool:
        """Count on an object that is stored already, and return whether it is."""
        if id in self._trusted:
            return True
        with self._lock:
            if id in self._claimed or id in self._relied:
                return True
        if not self._known(id):
            return False
        with self._lock:
            self._relied.add(id)
        return True

    def depth(self, id: ObjectId) -> int | None:
        """Return the depth of an object's record that this batch holds, or relies on; None where it is not known."""
        with self._lock:
            found = self._depths.get(id)
        return found if found is not None else self._depth_of(id)

    def append_record(self, header: Header, payload: Buffer) -> Stored:
        """Store a record that is sealed already, unless its object is known.

        Its bases, if any, must be stored when this batch is published, with less depth.

        Raises:
            StoreFull, StorageError: it could not be written; the batch is of no use any more.
        """
        self._check_usable()
        if not self._claim(header.id):
            return Stored(header.id, 0)
        try:
            return Stored(header.id, self._put(header, payload))
        except BaseException:
            self._broken = True
            raise

    def sync_some(self) -> bool:
        """Make a pack with much unsynced data durable; return whether there was one."""
        for pack in self._packs:
            if pack.unsynced >= SYNC_BYTES:
                self._sync(pack)
                return True
        return False

    def finish(self) -> None:
        """Make every touched pack durable, full ones closed with the list of their records.

        Raises:
            StorageError: something could not be stored; publishing must not go on.
        """
        self._check_usable()
        self._close_full()
        for pack in self._packs:
            self._sync(pack)

    def _sync(self, pack: PackWriter) -> None:
        started = time.perf_counter() - seconds_in_line()
        pack.sync()
        taken = time.perf_counter() - seconds_in_line() - started
        with self._lock:
            self._disk_seconds += taken
            if self._disk_bytes >= LEAST_WRITTEN:
                self._benches.thrift.wrote(self._disk_bytes, self._disk_seconds)
                self._disk_seconds, self._disk_bytes = 0.0, 0

    def _close_full(self) -> None:
        """Close the packs that are full: all but the last are, or there would be no next one."""
        for pack in self._packs:
            full = pack is not self._packs[-1] or pack.crowded
            if full and pack.end > pack.start and pack.name not in self._contents:
                earlier = salvage(pack.file, 0, pack.start, f"pack {pack.name.hex()}")
                new = sorted((placed.offset, placed.header) for placed in self._placed[pack.name])
                self._contents[pack.name] = pack.finish(chain(earlier, new), self._sealer.repo_id)

    def close(self) -> None:
        """Give the packs back to whoever lent them, published or not; again is fine."""
        if self._take_back is not None:
            self._take_back(self)

    def forget_packs(self) -> None:
        """Let go of the packs: whoever lent them has them back."""
        self._packs.clear()

    def growth(self) -> list[PackGrown]:
        """Return what the log has to say of the packs."""
        return [
            PackGrown(pack.name, pack.start, pack.end, self._contents.get(pack.name, 0))
            for pack in self._packs
            if pack.end > pack.start
        ]

    def records(self, growth: PackGrown) -> list[Placed]:
        """Return the records that a pack grew by."""
        return self._placed[growth.pack]

    def _every(self) -> Iterator[Placed]:
        for records in self._placed.values():
            yield from records

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedHandle("a commit that was begun before fork cannot go on in the child")
        if self._broken:
            raise StorageError("an object of this commit could not be stored", hint="begin the commit anew")

    def _claim(self, id: ObjectId) -> bool:
        """Return whether this thread is to store `id`: nobody did, and nobody else is at it."""
        if id in self._trusted:
            return False
        with self._lock:
            if id in self._claimed or id in self._relied:
                return False
        if self._known(id):
            with self._lock:
                self._relied.add(id)
            return False
        with self._lock:
            if id in self._claimed:
                return False
            self._claimed.add(id)
            return True

    def _code(
        self, bench: Bench, plain: memoryview, spec: Spec | None, choose: Choose | None
    ) -> tuple[Encoded, Offer | None]:
        """Return a chunk in the fewest bytes, and what was offered that those are a difference to, if they are one."""
        ways = choose(bench.encoder, plain) if choose is not None else ()
        encoded = bench.encoder.encode(plain, spec, [way for _, way in ways])
        offer = next((offer for offer, way in ways if way is encoded.against), None)
        if offer is None or self._comes_back(bench, encoded, plain):
            return encoded, offer
        return bench.encoder.encode(plain, spec), None  # it would not: never seen, and never stored

    def _seal(
        self, bench: Bench, kind: Kind, id: ObjectId, nbytes: int, encoded: Encoded, offer: Offer | None
    ) -> tuple[Header, bytes | memoryview]:
        room = bench.room("sealed", self._sealer.sealed_bytes(len(encoded.payload)))
        return self._sealer.seal(
            kind,
            id,
            nbytes,
            encoded.tags,
            encoded.payload,
            room,
            depth=offer.depth if offer is not None else 0,
            bases=tuple(base.id for base in offer.bases) if offer is not None else (),
            keyframe=offer is not None and offer.keyframe,
        )

    def _comes_back(self, bench: Bench, encoded: Encoded, plain: memoryview) -> bool:
        """Return whether a difference decodes to what it was made of; looked at of each that predicts, and of a few."""
        assert encoded.against is not None
        with self._lock:
            self._differences += 1
            if encoded.against.tag in PLAIN_DELTAS and self._differences % _LOOK_AT_EVERY:
                return True
        out = bench.room("again", len(plain))
        bench.decoder.decode(encoded.tags, encoded.payload, out, encoded.against.bases)
        return bytearray(out) == plain  # (two views are compared item by item)

    def _put(self, header: Header, payload: Buffer) -> int:
        parts = frame_record(header, payload)
        pack, offset = self._reserve(header)
        started = time.thread_time()  # what writing makes the disk wait for shows when it is synced
        pack.write(offset, parts)
        taken = time.thread_time() - started
        inline = b"".join(parts) if is_inline(header.kind, header.record_bytes) else None
        with self._lock:
            self._placed[pack.name].append(Placed(offset, header, inline))
            self._depths[header.id] = header.depth
            self._disk_seconds += taken
            self._disk_bytes += header.record_bytes
        return header.record_bytes

    def _reserve(self, header: Header) -> tuple[PackWriter, int]:
        with self._lock:
            if self._packs:
                pack = self._packs[-1]
                offset = pack.reserve(header.record_bytes)
                if offset is not None:
                    return pack, offset
            pack = self._open_pack()
            self._packs.append(pack)
            self._placed[pack.name] = []
            offset = pack.reserve(header.record_bytes)
            if offset is not None:
                return pack, offset
        return self._reserve(header)
