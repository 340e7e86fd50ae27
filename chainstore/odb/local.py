"""The local object database: packs and log on disk, looked up in an LMDB index.

What is written when is in docs/design.md; the short of it:

    append      records into packs that this process holds
    publish     sync packs; then, under the publish lock: settle, check, append one line to the log and sync it (the
                commit point), put the rows into the index, acknowledge
    settle      what a process that died left between log and index is finished, or cut off where it was torn
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from chainstore.codecs.base import RAW_TAGS
from chainstore.crypto.keyring import Keyring
from chainstore.errors import (
    ChainError,
    Conflict,
    Damaged,
    IdMismatch,
    Malformed,
    ReadOnly,
    RefConflict,
    SnapshotForgotten,
    StaleKeyring,
    StorageError,
    WrongRepository,
)
from chainstore.ids import Kind, ObjectId
from chainstore.leases import publish_lock
from chainstore.model.change import (
    Change,
    Checkpoint,
    PackGrown,
    SetKeyring,
    SetRef,
    Target,
    Unmark,
    decode_changes,
    encode_changes,
)
from chainstore.model.frame import MAX_DEPTH, MAX_HEADER_BYTES, MAX_PAYLOAD, Header, Line, is_record_kind, parse_header
from chainstore.odb.batch import Bench, Benches, LocalBatch
from chainstore.odb.layout import Format, Layout, Owner
from chainstore.odb.overlay import Overlay
from chainstore.odb.record import Sealer
from chainstore.odb.rows import INLINE_BYTES, Editor, Placed, RefRow, Rows, View
from chainstore.storage import fs
from chainstore.storage.index import Index
from chainstore.storage.log import BEGINNING, Log, Position
from chainstore.storage.pack import PackDir, PackWriter, is_crowded, scan

VERIFY_ALWAYS_BYTES = 64 << 20  # an index up to this size is walked at every writing open (7-10 ms a MB)
_TAKE_OVER_TRIES = 8
_ROOM_PER_RECORD = 1024  # index bytes for an object's rows, small records apart
_ROOM = 1 << 20
_SPARE_PAGES = 48
_SPARE_ROW_BYTES = 4000  # one takes a page of its own


class GoneMeanwhile(Conflict):
    """Objects that a commit relied on were collected while it was written; storing them again helps."""

    code = "gone-meanwhile"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the engine may know of the world, handed in by whoever opens it.

    Attributes:
        now_us: microseconds since 1970 UTC.
        random: n -> n random bytes (nonces, names of packs).
        host, process: shown to people.
    """

    now_us: Callable[[], int]
    random: Callable[[int], bytes]
    host: str
    process: str

    @property
    def who(self) -> str:
        return f"{self.process} on {self.host}"


class LocalDatabase:
    """Objects and refs of one repository directory; see `ObjectDatabase` for the contract.

    Use `create_local` and `open_local`.
    """

    def __init__(
        self, layout: Layout, sealer: Sealer, index: Index, owner: Owner, around: Surroundings, *, readonly: bool
    ) -> None:
        self.layout, self.sealer, self.readonly = layout, sealer, readonly
        self.around = around
        self.packs = PackDir(layout.packs)
        self.log = Log(layout.log)
        self.benches = Benches()
        self._index, self._owner = index, owner
        self._overlay: Overlay | None = None
        self._lock = threading.RLock()
        self._idle: list[PackWriter] = []
        self._left: list[Index] = []
        self._suspect: set[ObjectId] = set()
        self._refs_checked_at = b""
        self._owner_stamp: object = None
        self._in_doubt = False  # whether the log may hold a line whose publishing failed
        self._pid = os.getpid()

    @property
    def index_path(self) -> Path:
        """The folder of the index in force."""
        return self.layout.index(self._owner.uuid)

    # -- reading

    @contextmanager
    def view(self) -> Iterator[View]:
        """Give typed look-ups in the index as it is now, the table of refs verified.

        Raises:
            Damaged: the table of refs is not whole.
        """
        self._catch_up()
        with self._index.read() as rows:
            view = View(self._seen(rows), self.sealer)
            position = view.position()
            if position.hash != self._refs_checked_at:
                view.check_refs()
                self._refs_checked_at = position.hash
            yield view

    def has(self, id: ObjectId) -> bool:
        """Whether an object is stored; one that a read found damaged is not."""
        if id in self._suspect:
            return False
        with self._index.read() as rows:
            return self._seen(rows).get("objects", id) is not None

    def unsuspected(self, ids: frozenset[ObjectId]) -> frozenset[ObjectId]:
        """Return those of `ids` that no read found damaged."""
        return ids - self._suspect

    def length(self, id: ObjectId) -> int:
        """Return the plain bytes of an object as the index has them; -1 where it is not stored."""
        with self._index.read() as rows:
            place = View(self._seen(rows), self.sealer).place(id)
        return place.plain_len if place is not None else -1

    def read(self, id: ObjectId, out: memoryview | None = None) -> memoryview:
        """Return the plain bytes of an object, verified; in `out` where it is given.

        Raises:
            IdMismatch: missing, or not what was stored; `out` then holds nothing of use.
        """
        try:
            return self._read(id, out, MAX_DEPTH + 1, {})
        except IdMismatch:
            self._suspect.add(id)
            raise
        except (Damaged, WrongRepository) as error:
            self._suspect.add(id)
            raise IdMismatch(str(id), str(error)) from error

    def _read(self, id: ObjectId, out: memoryview | None, below: int, known: dict[ObjectId, memoryview]) -> memoryview:
        """Return an object whose record has less depth than `below`; `known` holds the bases read so far."""
        bench = self.benches.take("auto")
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
            self.benches.give_back(bench)
        if self.sealer.id(Kind(header.kind), target) != id:
            raise IdMismatch(str(id), "its bytes do not hash to its id")
        return target

    def _read_base(self, id: ObjectId, below: int, known: dict[ObjectId, memoryview]) -> memoryview:
        try:
            return self._read(id, None, below, known)
        except (Damaged, WrongRepository):
            self._suspect.add(id)
            raise

    def _fetch(self, bench: Bench, id: ObjectId) -> tuple[Header, memoryview]:
        """Return header and sealed payload of an object's record, which lies in the bench's memory."""
        with self._index.read() as rows:
            view = View(self._seen(rows), self.sealer)
            place = view.place(id)
            if place is None:
                raise IdMismatch(str(id), "it is not in the store")
            inline = view.inline(id)
            pack = view.pack(place.pack).pack if inline is None else b""
        if inline is not None:
            record = memoryview(inline)
        else:
            record = bench.room("record", min(place.length, MAX_PAYLOAD + MAX_HEADER_BYTES))
            record = record[: self.packs.read_into(pack, place.offset, record)]
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
        if raw and self.sealer.sealed_bytes(len(target)) != len(payload):
            raise IdMismatch(str(header.id), "its record has another length than it says")
        into_target = raw and self.sealer.encrypted
        encoded = self.sealer.open(header, payload, target if into_target else bench.room("opened", len(payload)))
        if not into_target:
            bench.decoder.decode(header.codecs, encoded, target, bases)

    def refs(self) -> list[RefRow]:
        """Return every ref that exists, sorted by name."""
        with self.view() as view:
            return view.refs()

    def commits_from(self, low: bytes, prefix: str) -> list[ObjectId]:
        """Return the commits whose id starts with the hex digits `prefix`; `low` is the least such id."""
        found = []
        with self._index.read() as rows:
            seen = self._seen(rows)
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
            for id, _ in View(self._seen(rows), self.sealer).objects():
                yield id

    def _catch_up(self) -> None:
        """Before a look: go over to the index in force, and finish what a failing disk left in doubt."""
        with suppress(ChainError):  # what we have is still readable
            stamp = self.layout.owner_stamp()
            if stamp != self._owner_stamp:
                with self._lock:
                    self._follow_owner()
                self._owner_stamp = stamp
            if self._in_doubt:
                self.settle()

    def _seen(self, rows: Rows) -> Rows:
        overlay = self._overlay  # another thread may drop it
        if overlay is None:
            return rows
        if View(rows, self.sealer).position().seq >= overlay.seq:
            self._overlay = None
            return rows
        return overlay.over(rows)

    # -- writing

    def batch(self, codec: str | None = None) -> LocalBatch:
        """Begin to store objects.

        Raises:
            ReadOnly: the database was opened for reading.
        """
        self._must_write()
        return LocalBatch(self.sealer, self.benches, codec or "auto", self.has, self._take_pack)

    def publish(self, batch: LocalBatch | None, changes: Sequence[Change], *, parents: Sequence[ObjectId] = ()) -> int:
        """Make a batch and `changes` durable and visible in one step; return the number of the log line.

        Args:
            parents: commits that a new one descends from.

        Raises:
            RefConflict: a ref is not where a `SetRef` expects it.
            SnapshotForgotten: gc has begun to take what a ref or a new commit would lead to.
            GoneMeanwhile: an object that the batch relied on is no longer there.
            Locked: another process published all the time.
            StoreFull, StorageError: nothing was published, unless the message says that nobody knows.
        """
        self._must_write()
        if batch is not None:
            batch.finish()
        with self._publishing() as position:
            with self.view() as view:
                _check_refs(view, changes)
                _check_marks(view, [*parents, *_led_to(changes)])
                if batch is not None:
                    _check_batch(view, batch)
            if batch is None:
                return self._publish(position, changes, _no_records).seq
            seq = self._publish(position, [*batch.growth(), *changes], batch.records).seq
            self._suspect -= batch.stored.keys()  # they were stored anew
            return seq

    def change_keyring(self, change: Callable[[Keyring], Keyring]) -> None:
        """Put what `change` makes of the key slots in force in their place; durable when it returns."""
        self._must_write()
        with self._publishing() as position:
            keyring = change(self.layout.read_keyring())
            self.layout.write_keyring(keyring)
            self._publish(position, [SetKeyring(keyring.number)], _no_records)

    def retire_batch(self, batch: LocalBatch) -> None:
        """Take back the packs of a batch, published or not, for the next one."""
        with self._lock:
            for pack in batch.packs:
                if pack.crowded or not pack.file.trusted:
                    pack.close()
                else:
                    pack.rest()
                    self._idle.append(pack)
            batch.forget_packs()

    def settle(self) -> None:
        """Finish or cut off what a process that died left between log and index."""
        with self._publishing():
            pass

    def close(self) -> None:
        """Give up everything that is open; again is fine."""
        with self._lock:
            for pack in self._idle:
                pack.close()
            self._idle.clear()
            self.packs.close()
            for index in (*self._left, self._index):
                index.close()
            self._left.clear()

    @contextmanager
    def _publishing(self) -> Iterator[Position]:
        """Hold the publish lock, everything settled; gives the position of log and index."""
        self._must_write()
        with self._lock, publish_lock(self.layout.leases, self.around.who):
            yield self._settle()

    def _settle(self) -> Position:
        self._follow_owner()
        position = self._position()
        if not self.log.ends_at(position):
            self.log.check(position)
            self.log.sync(position)  # or the index could come to know a line that a power cut takes from the log
            for at, line in list(self.log.after(position)):
                self._redo(at, line)
                position = at
            self.log.cut(position)
        self.log.drop_before(position.segment)
        self._in_doubt = False
        return position

    def _redo(self, at: Position, line: Line) -> None:
        time_us, changes = decode_changes(self.sealer.open_line(line))
        grown = [change for change in changes if isinstance(change, PackGrown)]
        for change in grown:
            self.packs.sync(change.pack)
        placed = {change.pack: self.read_records(change) for change in grown}
        self._index.ensure_room(_room_for(placed.values()))
        with self._index.write() as rows:
            Editor(rows, self.sealer).apply(at, line, time_us, changes, lambda change: placed[change.pack])

    def read_records(self, growth: PackGrown) -> list[Placed]:
        """Return the records that a pack grew by, from the pack itself.

        Raises:
            Damaged: the pack is missing or not what the log says.
        """
        name = growth.pack.hex()
        try:
            with fs.open_file(self.packs.path(growth.pack)) as file:
                if file.size() < growth.stop:
                    raise Damaged(f"pack {name} has {file.size()} bytes where {growth.stop} were committed")
                return [
                    Placed(
                        offset,
                        header,
                        file.pread(offset, header.record_bytes) if header.record_bytes <= INLINE_BYTES else None,
                    )
                    for offset, header in scan(file, growth.start, growth.stop, f"pack {name}")
                    if is_record_kind(header.kind)
                ]
        except FileNotFoundError:
            raise Damaged(f"pack {name} is missing") from None

    def _publish(
        self, position: Position, changes: Sequence[Change], records: Callable[[PackGrown], list[Placed]]
    ) -> Position:
        if self.log.is_full(position):
            position = self._start_segment(position)
        time_us = self.around.now_us()
        body = encode_changes(time_us, changes)
        line = self.sealer.seal_line(position.seq + 1, position.hash, body)
        grown = [records(change) for change in changes if isinstance(change, PackGrown)]
        self._index.ensure_room(_room_for(grown) + 2 * len(body))
        try:
            at = self.log.append(line, position)
            with self._index.write() as rows:
                Editor(rows, self.sealer).apply(at, line, time_us, changes, records)
        except BaseException as error:
            if not self._index_holds(line.seq):
                self._undo(position)
                raise
            if not isinstance(error, Exception):
                raise  # Ctrl-C, just after it happened
            # the index has it, so it happened, whatever else went wrong
        return at

    def _start_segment(self, position: Position) -> Position:
        with self._index.read() as rows:
            point = View(rows, self.sealer).checkpoint()
        time_us = self.around.now_us()
        line = self.sealer.seal_line(position.seq + 1, position.hash, encode_changes(time_us, [point]))
        self._index.ensure_room(_ROOM + 2 * line.line_bytes)
        try:
            at = self.log.append(line, position, new_segment=True)
            with self._index.write() as rows:
                Editor(rows, self.sealer).apply(at, line, time_us, [point], _no_records)
        except BaseException:
            if not self._index_holds(line.seq):
                self._undo(position)
            raise
        self.log.drop_before(at.segment)
        return at

    def _index_holds(self, seq: int) -> bool:
        """Whether the line joined the index.

        Raises:
            StorageError: the index cannot be read: the line is left in the log, and nobody knows.
        """
        try:
            return self._position().seq >= seq
        except ChainError as error:
            self._in_doubt = True
            raise _unknown(error) from error

    def _undo(self, position: Position) -> None:
        try:
            self.log.cut(position)
        except ChainError as error:
            self._in_doubt = True
            raise _unknown(error) from error

    def _position(self) -> Position:
        with self._index.read() as rows:
            return View(rows, self.sealer).position()

    def _follow_owner(self) -> None:
        """Go over to the index that is in force, if it is another than ours."""
        owner = self.layout.read_owner()
        if owner.uuid != self._owner.uuid:
            index = Index.open(self.layout.index(owner.uuid), readonly=self.readonly)
            try:
                _check_repository(self, index)
            except BaseException:
                index.close()
                raise
            self._left.append(self._index)  # other threads may be reading it
            self._index, self._owner, self._overlay, self._refs_checked_at = index, owner, None, b""

    def _take_pack(self) -> PackWriter:
        """Return a pack to append to: one that this process used before, one that rests, or a new one."""
        with self._publishing(), self.view() as view:
            while self._idle:
                idle = self._idle.pop()
                writer = self._resume(view, idle.name, idle.file) if self._relock(idle) else None
                if writer is not None:
                    return writer
                idle.close()  # somebody else has it now, or it is full
            for name in _resting(view):
                file = self.packs.take_over(name)
                writer = self._resume(view, name, file) if file is not None else None
                if writer is not None:
                    return writer
            return self.packs.create(self.around.random(16))

    def _relock(self, idle: PackWriter) -> bool:
        return idle.file.flock(exclusive=True) and idle.file.is_at(self.packs.path(idle.name))

    def _resume(self, view: View, name: bytes, file: fs.File) -> PackWriter | None:
        number = view.pack_number(name)
        line = view.pack(number) if number is not None else None
        if line is not None and (line.contents or line.retired or is_crowded(line.length)):
            file.close()
            return None
        return self.packs.resume(name, file, line.length if line is not None else 0)

    def _must_write(self) -> None:
        if self.readonly:
            raise ReadOnly(f"{self.layout.root} was opened for reading", hint="open it without readonly=True")

    # -- opening

    def attach(self) -> None:
        """Bring log and index together after opening.

        Raises:
            Damaged: the log lacks what was acknowledged, or the index is ahead of it.
        """
        if self.readonly:
            while not self._attach_for_reading():
                pass
            return
        with self._lock, publish_lock(self.layout.leases, self.around.who):
            self._follow_owner()
            self.log.check(self._position())
            self._settle()

    def _attach_for_reading(self) -> bool:
        """Apply in memory what the log has and the index has not; False: somebody published meanwhile, look again."""
        with self._index.read() as rows:
            position = View(rows, self.sealer).position()
            try:
                self.log.check(position)
                ahead = [] if self.log.ends_at(position) else list(self.log.after(position))
                self._overlay = Overlay.of(rows, self.sealer, ahead, self.read_records) if ahead else None
            except Damaged:
                if self._position() == position:
                    raise
                return False
        return True


def create_local(
    layout: Layout,
    format: Format,
    sealer: Sealer,
    keyring_number: int,
    around: Surroundings,
    *,
    head: Target,
    config: dict[str, str],
) -> LocalDatabase:
    """Make an empty database in a directory whose folders exist; `format` is written last, by the caller."""
    for segment in Log(layout.log).segments():
        fs.unlink(Log(layout.log).path(segment))  # left by an init that was cut off
    point = Checkpoint(format.hash, keyring_number, (("HEAD", head),), tuple(config.items()), (), (), ())
    time_us = around.now_us()
    line = sealer.seal_line(1, bytes(32), encode_changes(time_us, [point]))
    at = Log(layout.log).append(line, BEGINNING, new_segment=True)
    uuid = around.random(16).hex()
    index = Index.create(layout.index(uuid))
    index.ensure_room(_ROOM)
    with index.write() as rows:
        editor = Editor(rows, sealer)
        editor.identify(format.repo_id, format.hash, keyring_number)
        editor.restore(point, _no_records)
        editor.apply(at, line, time_us, [point], _no_records)
    _make_spare_pages(index)
    owner = Owner(uuid, index.inode[1], around.host)
    layout.write_owner(owner)
    return LocalDatabase(layout, sealer, index, owner, around, readonly=False)


def open_local(
    layout: Layout, format: Format, sealer: Sealer, keyring_number: int, around: Surroundings, *, readonly: bool
) -> LocalDatabase:
    """Open the database of a directory.

    Raises:
        Damaged: the index is missing or broken, or does not fit the log; `rebuild-index` heals it.
        WrongRepository, StaleKeyring: files of another repository or of another time lie here.
    """
    if readonly:
        index, owner = _open_for_reading(layout, around)
    else:
        fs.make_dirs(layout.leases)  # a copy may lack it
        with publish_lock(layout.leases, around.who) as unclean:  # nobody puts another index in force meanwhile
            layout.complete()
            owner = layout.read_owner()
            path = layout.index(owner.uuid)
            if unclean or _size(path) <= VERIFY_ALWAYS_BYTES:
                _walk(path)
            owner = _known_inode(layout, path, owner, around, adopt=True)
            index = Index.open(path)
    db = LocalDatabase(layout, sealer, index, owner, around, readonly=readonly)
    try:
        _check_identity(db, format, keyring_number)
        db.attach()
    except BaseException:
        db.close()
        raise
    return db


def _make_spare_pages(index: Index) -> None:
    """Leave free pages in a new index.

    Every transaction of LMDB writes the pages it touches anew, a dozen for a small commit, and takes free ones for
    that only where an older transaction left some; without these the first commits each grow the file by 40 KB.
    """
    rows = [number.to_bytes(2, "big") for number in range(_SPARE_PAGES)]
    with index.write() as out:
        for row in rows:
            out.put("meta", b"spare" + row, bytes(_SPARE_ROW_BYTES))
    with index.write() as out:
        for row in rows:
            out.delete("meta", b"spare" + row)
    with index.write() as out:  # a page that was freed is used again only two transactions later
        out.put("meta", b"spare", b"")


def _open_for_reading(layout: Layout, around: Surroundings) -> tuple[Index, Owner]:
    while True:
        owner = layout.read_owner()
        path = layout.index(owner.uuid)
        try:
            owner = _known_inode(layout, path, owner, around, adopt=False)
            return Index.open(path, readonly=True), owner
        except (Damaged, StorageError):
            if layout.read_owner().uuid == owner.uuid:
                raise
            # else it was rebuilt meanwhile


def _known_inode(layout: Layout, path: Path, owner: Owner, around: Surroundings, *, adopt: bool) -> Owner:
    """Look at an index that was put here (a copy, a backup) before it is trusted."""
    try:
        inode = (path / "data.mdb").stat().st_ino
    except FileNotFoundError:
        raise Damaged(
            f"the index of {layout.root} is missing",
            hint="`chain rebuild-index` makes it anew from the log and the packs",
        ) from None
    if inode == owner.inode:
        return owner
    _walk(path)
    owner = Owner(owner.uuid, inode, around.host)
    if adopt:
        layout.write_owner(owner)
    return owner


def _walk(path: Path) -> None:
    problems = Index.verify_file(path)
    if problems:
        raise Damaged(
            f"the index is damaged: {problems[0]}" + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""),
            hint="`chain rebuild-index` makes it anew from the log and the packs",
        )


def _size(path: Path) -> int:
    data = path / "data.mdb"
    return data.stat().st_size if data.exists() else 0


def _check_repository(db: LocalDatabase, index: Index) -> tuple[bytes, int]:
    with index.read() as rows:
        repo_id, format_hash, keyring = View(rows, db.sealer).identity()
    if repo_id != db.sealer.repo_id:
        raise WrongRepository(
            f"the index in {db.layout.root} belongs to repository {repo_id.hex()}, not {db.sealer.repo_id.hex()}",
            hint="put the right index back, or make one with `chain rebuild-index`",
        )
    return format_hash, keyring


def _check_identity(db: LocalDatabase, format: Format, keyring_number: int) -> None:
    format_hash, keyring = _check_repository(db, db._index)
    if format_hash != format.hash:
        raise Malformed("format", "it is not the file this repository was last used with")
    if keyring_number < keyring:
        raise StaleKeyring(
            f"the key slots are number {keyring_number}, but number {keyring} is in force",
            hint="restore `keyring` and `keyring.bak` from the newest copy of the repository",
        )


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
            raise SnapshotForgotten(f"commit {mark.commit.short} was forgotten by {mark.policy}")


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
    if gone:
        raise GoneMeanwhile(f"{len(gone)} objects that this commit relied on were collected meanwhile")


def _resting(view: View) -> list[bytes]:
    """Return the names of the newest packs that may be taken over."""
    open_ones = [
        line.pack for _, line in view.packs() if not (line.contents or line.retired or is_crowded(line.length))
    ]
    return open_ones[: -_TAKE_OVER_TRIES - 1 : -1]


def _room_for(groups: Iterable[list[Placed]]) -> int:
    total = _ROOM
    for group in groups:
        for placed in group:
            total += _ROOM_PER_RECORD + (2 * len(placed.inline) if placed.inline is not None else 0)
    return total


def _no_records(growth: PackGrown) -> list[Placed]:
    raise Malformed("log line", f"pack {growth.pack.hex()} grew where none can")


def _unknown(error: ChainError) -> StorageError:
    return StorageError(
        f"the disk failed while a commit was published, and again while it was undone ({error}): its outcome is "
        "unknown",
        hint="look at `chain log` before you commit again",
    )


def _text(target: Target) -> str | None:
    return str(target) if target is not None else None
