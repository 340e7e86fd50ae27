"""The local object database: packs and log on disk, looked up in an LMDB index.

What is written when is in docs/design.md; the short of it:

    append      records into packs that this process holds
    publish     sync packs; then, under the publish lock: settle, check, append one line to the log and sync it (the
                commit point), put the rows into the index, acknowledge
    settle      what a process that died left between log and index is finished, or cut off where it was torn

What is where: `opening` makes and opens one, `reader` reads objects, `batch` and `pack_hold` append them, `conflicts`
says what may not be published, `publisher` publishes and settles, `in_force` is the index, `rebuild` makes it anew.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from chainstore.crypto.keyring import Keyring
from chainstore.errors import ChainError, ReadOnly
from chainstore.ids import Kind, ObjectId
from chainstore.model.change import Change, SetKeyring
from chainstore.odb.batch import Benches, LocalBatch
from chainstore.odb.conflicts import check_generation, check_publishable, taken_back
from chainstore.odb.folding import FOLD_BYTES, Node, Nodes
from chainstore.odb.in_force import IndexInForce
from chainstore.odb.layout import Layout, Owner
from chainstore.odb.pack_hold import PackHold
from chainstore.odb.private import PrivateIndex
from chainstore.odb.publisher import Publisher, no_records
from chainstore.odb.reader import ObjectReader, Wanted
from chainstore.odb.record import Sealer
from chainstore.odb.rows import RefRow
from chainstore.odb.surroundings import Surroundings
from chainstore.odb.turn import RebuiltMeanwhile, Turn
from chainstore.odb.view import View
from chainstore.storage.index import Index
from chainstore.storage.log import Log, Position
from chainstore.storage.pack import PackDir, PackWriter


class LocalDatabase:
    """Objects and refs of one repository directory; see `ObjectDatabase` for the contract.

    Use `odb.opening.create_local` and `open_local`.
    """

    def __init__(
        self,
        layout: Layout,
        sealer: Sealer,
        index: Index,
        owner: Owner,
        around: Surroundings,
        *,
        readonly: bool,
        private: PrivateIndex | None = None,
    ) -> None:
        self.layout, self.sealer, self.around, self.readonly = layout, sealer, around, readonly
        self.packs = PackDir(layout.packs)
        self.log = Log(layout.log)
        self.benches = Benches()
        self._lock = threading.RLock()
        self._index = IndexInForce(layout, sealer, index, owner, self._lock, around, private)
        self._reader = ObjectReader(self._index, self.packs, sealer, self.benches)
        self._publisher = Publisher(layout, sealer, around, self.log, self._index, self.packs)
        self._hold = PackHold(self.packs, self._publisher, self.view, around.random)

    @property
    def index(self) -> IndexInForce:
        """The index that is looked into: the one in force, or a private one where that is elsewhere."""
        return self._index

    @property
    def index_path(self) -> Path:
        """The folder of that index."""
        return self._index.path

    # -- reading

    @contextmanager
    def view(self) -> Iterator[View]:
        """Give typed look-ups in the index as it is now, the table of refs verified.

        Raises:
            Damaged: the table of refs is not whole.
        """
        self._catch_up()
        with self._index.view() as view:
            yield view

    def has(self, id: ObjectId) -> bool:
        """Whether an object is stored; one that a read found damaged is not."""
        return self._reader.has(id)

    def unsuspected(self, ids: frozenset[ObjectId]) -> frozenset[ObjectId]:
        """Return those of `ids` that no read found damaged."""
        return ids - self._reader.suspects

    def suspect(self, ids: Iterable[ObjectId]) -> None:
        """Take these for damaged, whatever reads said: they count as not stored until they are stored anew."""
        self._reader.suspects.update(ids)

    def _depth_of(self, id: ObjectId) -> int | None:
        with self._index.read() as rows:
            place = View(self._index.seen(rows), self.sealer).place(id)
        return place.depth if place is not None else None

    def length(self, id: ObjectId) -> int:
        """Return the plain bytes of an object as the index has them; -1 where it is not stored."""
        return self._reader.length(id)

    def read(self, id: ObjectId, out: memoryview | None = None) -> memoryview:
        """Return the plain bytes of an object, verified; in `out` where it is given.

        Raises:
            IdMismatch: missing, or not what was stored; `out` then holds nothing of use.
        """
        return self._reader.read(id, out)

    def read_together(
        self, wanted: Wanted, room: int = FOLD_BYTES, nodes: Nodes | None = None
    ) -> dict[ObjectId, memoryview]:
        """Return the plain bytes of objects, verified; see `ObjectReader.read_together`."""
        return self._reader.read_together(wanted, room, nodes)

    def prove(self, ids: Iterable[ObjectId]) -> int:
        """Read objects, and what they build on, without keeping any; see `ObjectReader.prove`."""
        return self._reader.prove(ids)

    def lay_out(self, ids: Iterable[ObjectId]) -> dict[ObjectId, Node]:
        """Return the records of objects and of everything they build on; see `folding.lay_out`."""
        return self._reader.lay_out(ids)

    def lines_ahead(self) -> int:
        """Return how many lines the log has that the index lacks, as a crash leaves them."""
        position = self._index.position()
        return 0 if self.log.ends_at(position) else sum(1 for _ in self.log.after(position))

    def refs(self) -> list[RefRow]:
        """Return every ref that exists, sorted by name."""
        with self.view() as view:
            return view.refs()

    def commits_from(self, low: bytes, prefix: str) -> list[ObjectId]:
        """Return the commits whose id starts with the hex digits `prefix`; `low` is the least such id."""
        found = []
        with self._index.read() as rows:
            seen = self._index.seen(rows)
            for key, _ in seen.scan("objects", start=low):
                if not key.hex().startswith(prefix):
                    break
                place = View(seen, self.sealer).place(key)
                if place is not None and place.kind == Kind.COMMIT:
                    found.append(ObjectId(key))
        return found

    def scan(self) -> Iterator[ObjectId]:
        """Yield the id of every object in the index."""
        with self._index.read() as rows:
            for id, _ in View(self._index.seen(rows), self.sealer).objects():
                yield id

    def _catch_up(self) -> None:
        """Before a look: go over to the index in force, and finish what a failing disk left in doubt."""
        with suppress(ChainError):  # what we have is still readable
            if self._index.catch_up():
                self.packs.let_go_all()  # another machine may have added to what is open here
            if self._publisher.in_doubt:
                self.settle()

    # -- writing

    def batch(self, codec: str | None = None) -> LocalBatch:
        """Begin to store objects.

        Raises:
            ReadOnly: the database was opened for reading.
        """
        self._must_write()
        return LocalBatch(
            self.sealer, self.benches, codec or "auto", self.has, self._take_pack, self.retire_batch, self._depth_of
        )

    def publish(self, batch: LocalBatch | None, changes: Sequence[Change], *, parents: Sequence[ObjectId] = ()) -> int:
        """Make a batch and `changes` durable and visible in one step; return the number of the log line.

        A commit that a `SetRef` leads to is no longer forgotten: its mark is taken back in the same step.

        Args:
            parents: commits that a new one descends from.

        Raises:
            RefConflict: a ref is not where a `SetRef` expects it, or at a commit that a `Mark` would forget.
            SnapshotForgotten: gc has begun to take what a ref or a new commit would lead to.
            GoneMeanwhile: an object that the batch relied on is no longer there.
            Locked: another process published all the time.
            StoreFull, StorageError: nothing was published, unless the message says that nobody knows.
        """
        self._must_write()
        if batch is not None:
            batch.finish()
        with self._publisher.turn() as position:
            with self.view() as view:
                check_publishable(view, batch, changes, parents)
                if batch is not None:
                    check_generation(batch, self.sealer.generation)
                changes = [*changes, *taken_back(view, changes)]
            if batch is None:
                return self._publisher.publish(position, changes, no_records).seq
            seq = self._publisher.publish(position, [*batch.growth(), *changes], batch.records).seq
            self._reader.suspects -= batch.stored.keys()  # they were stored anew
            return seq

    @contextmanager
    def turn(self, index: Path | None = None) -> Iterator[Turn]:
        """Hold the right to publish, everything settled; for maintenance, which checks for itself what it publishes.

        Args:
            index: what `index_path` was when that was prepared.

        Raises:
            RebuiltMeanwhile: it is another by now.
        """
        self._must_write()
        with self._publisher.turn() as position:
            if index not in (None, self.index_path):
                raise RebuiltMeanwhile(
                    "the index was rebuilt meanwhile", hint="run it again: what was done by then is done"
                )
            yield Turn(self._publisher, position, self.view)

    def drop_dead_readers(self) -> int:
        """Free what look-ups of processes that died still hold in the index, and return how many there were."""
        return self._index.drop_dead_readers()

    def position(self) -> Position:
        """Return the last line of the log that the index knows."""
        return self._index.position()

    def change_keyring(self, change: Callable[[Keyring], Keyring], *, renewed: bool = False) -> None:
        """Put what `change` makes of the key slots in force in their place; durable when it returns.

        Args:
            renewed: they hold a new generation of keys, with which everything is sealed from here on.
        """
        self._must_write()
        with self._publisher.turn() as position:
            keyring = change(self.layout.read_keyring())
            self.layout.write_keyring(keyring)  # before anything is sealed with what it holds
            if renewed:
                self.sealer.keep_up(self.sealer.generation + 1)
            self._publisher.publish(position, [SetKeyring(keyring.number)], no_records)

    def retire_batch(self, batch: LocalBatch) -> None:
        """Take back the packs of a batch, published or not, for the next one."""
        with self._lock:
            self._hold.take_back(batch)

    def attach(self) -> None:
        """Bring log and index together after opening.

        Raises:
            Damaged: the log lacks what was acknowledged, or the index is ahead of it.
        """
        if self.readonly:
            self._publisher.attach_for_reading()
        else:
            self._publisher.attach()

    def settle(self) -> None:
        """Finish or cut off what a process that died left between log and index."""
        self._must_write()
        with self._publisher.turn():
            pass

    def close(self) -> None:
        """Give up everything that is open; again is fine."""
        with self._lock:
            self._hold.close()
            self.packs.close()
            self._index.close()

    def _take_pack(self) -> PackWriter:
        self._must_write()
        return self._hold.take()

    def _must_write(self) -> None:
        if self.readonly:
            raise ReadOnly(f"{self.layout.root} was opened for reading", hint="open it without readonly=True")
