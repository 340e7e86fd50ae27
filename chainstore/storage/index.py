"""The index: one LMDB environment in which every object, ref and log line is looked up.

It can always be rebuilt from the commit log and the packs, so it may be small, fast and on a local disk; what it
may not do is to hand out anything wrong.  Hence three habits.  Every row carries a checksum over table, key and
value, because LMDB has none and a flipped bit in one of its pages reads like data.  The file is looked at before
LMDB maps it, because LMDB takes an empty file for an empty database and a short one for a reason to die.  And each
environment is opened once per process and shared, because its locks are POSIX locks: closing a second descriptor of
`lock.mdb`, however opened, drops the locks of the first.  (So nothing here or elsewhere ever opens that file.)

    index = Index.create(path)
    with index.write() as writer:                   # committed and on disk at the end of the block
        writer.put("refs", b"main", b"...")
    with index.read() as reader:                    # one consistent moment, until the end of the block
        assert reader.get("refs", b"main") == b"..."
"""

import errno
import mmap
import os
import resource
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import lmdb
from lmdb.verify import VerifyError, verify

from chainstore.errors import (
    AlreadyExists,
    ChainError,
    Damaged,
    ForkedHandle,
    InvalidInput,
    ReadOnly,
    StorageError,
    StoreFull,
    UnsuitablePlace,
)
from chainstore.storage import fs, recent
from chainstore.storage.gate import Gate, is_in
from chainstore.storage.rows import (
    MAX_KEY_BYTES,
    ONE_PAGE_VALUE_BYTES,
    REBUILD,
    RECENT,
    TABLES,
    successor,
)

__all__ = ["MAX_KEY_BYTES", "ONE_PAGE_VALUE_BYTES", "TABLES", "Index", "Reader", "Writer"]

MAP_BYTES = 64 << 30  # address space, not memory or disk; grown when the index does
MAX_READERS = 1024  # transactions open at once, all processes together
_EVERY_TABLE = (*TABLES, RECENT)
_PAGE_BYTES = 4096
_SMALLER_MAPS = (MAP_BYTES, 8 << 30, 1 << 30, 256 << 20)  # for processes whose address space is limited
_ROOM_FACTOR = 8  # bytes of new pages a byte of new rows takes at most: pages half full, values on pages of their own
_ROOM_BYTES = 64 << 20
_SCARCE_BYTES = 16 << 20  # a failed write with less than this free is taken for a full disk
_FORK_PATIENCE_SECONDS = 1.0


class Reader(recent.Reads):
    """The index at one moment: what is committed later is not seen.

    Any thread may use it, one at a time.  Everything it returns is a copy and stays valid.  Keep it short: the space
    of rows that were replaced since is not reused while it is open.  In a forked child it raises `ForkedHandle`.

    Cost: 2 us to open and close, 1 us a `get`.
    """

    __slots__ = ("_environment", "_inherited", "_thread", "_txn", "_write")

    def __init__(self, environment: "_Environment", write: bool = False) -> None:
        super().__init__(environment.recent)
        self._environment, self._write = environment, write
        self._txn: lmdb.Transaction[bytes] | None = None
        self._thread = 0
        self._inherited = False

    def __enter__(self) -> Self:
        self._environment.begin(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._environment.end(self, commit=False)

    def _state(self) -> int:
        return self._opened().id() - self._write

    def _stored(self, table: str, key: bytes) -> bytes | None:
        try:
            stored = self._opened().get(key, None, self._environment.tables[table])
        except lmdb.Error as error:
            raise self._environment.failure(error, f"look up a row of table {table}") from error
        self._environment.check_unmoved(self)
        return stored

    def _stored_many(self, table: str, keys: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        try:
            with self._opened().cursor(self._environment.tables[table]) as cursor:
                found = cursor.getmulti(keys)
        except lmdb.Error as error:
            raise self._environment.failure(error, f"look up rows of table {table}") from error
        self._environment.check_unmoved(self)
        return found

    def _entries(self, table: str) -> int:
        try:
            return self._opened().stat(self._environment.tables[table])["entries"]
        except lmdb.Error as error:
            raise self._environment.failure(error, f"count the rows of table {table}") from error

    def _opened(self) -> "lmdb.Transaction[bytes]":
        if self._txn is None:
            if self._inherited:
                raise ForkedHandle("a transaction on the index does not live on in a forked process")
            raise StorageError("this transaction on the index has ended")
        return self._txn

    def _rows(
        self, table: str, prefix: bytes, start: bytes | None, reverse: bool, skip: bytes | None, most: int
    ) -> list[tuple[bytes, bytes]]:
        rows: list[tuple[bytes, bytes]] = []
        if table not in self._environment.tables:
            return self._rows_of_none()
        try:
            with self._opened().cursor(self._environment.tables[table]) as cursor:
                found = _seek(cursor, prefix, start, reverse)
                while found and len(rows) < most and cursor.key().startswith(prefix):
                    if cursor.key() != skip:
                        rows.append(cursor.item())
                    found = cursor.prev() if reverse else cursor.next()
        except lmdb.Error as error:
            raise self._environment.failure(error, f"scan table {table}") from error
        self._environment.check_unmoved(self)
        return rows

    def _rows_of_none(self) -> list[tuple[bytes, bytes]]:
        """Return the rows of the table that an index of before has not got: none, unless a writer made it since."""
        try:
            if self._opened().stat(None)["entries"] == len(TABLES):  # the tables are rows of one without a name
                return []
        except lmdb.Error as error:
            raise self._environment.failure(error, "count the tables") from error
        raise StorageError(
            f"the index at {self._environment.path} has got a table since it was opened for reading",
            hint="open the repository again",
        )


class Writer(Reader, recent.Writes):
    """A transaction that changes the index; it sees its own changes, others see all of them or none.

    It belongs to the thread that opened it.  At most one is open at a time, over all processes: callers hold the
    publish lock.  Leaving its `with` block commits it, durably; an exception undoes it.
    """

    __slots__ = ()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._environment.end(self, commit=kind is None)

    def _set(self, table: str, key: bytes, stored: bytes) -> None:
        try:
            self._opened().put(key, stored, db=self._environment.tables[table])
        except lmdb.Error as error:
            raise self._environment.failure(error, f"put a row of table {table}") from error

    def _set_new(self, table: str, rows: Sequence[tuple[bytes, bytes]]) -> int:
        try:
            with self._opened().cursor(self._environment.tables[table]) as cursor:
                behind = not cursor.last() or cursor.key() < rows[0][0]
                return int(cursor.putmulti(rows, overwrite=False, append=behind)[1])
        except lmdb.Error as error:
            raise self._environment.failure(error, f"put rows of table {table}") from error

    def _remove(self, table: str, key: bytes) -> bool:
        try:
            return self._opened().delete(key, db=self._environment.tables[table])
        except lmdb.Error as error:
            raise self._environment.failure(error, f"delete a row of table {table}") from error


class Index:
    """A handle on the index at a path; handles of one process share what is behind them.

    Use `create` or `open`.  Threads may share a handle.  In a forked child a handle opens the index anew at its first
    use there, and leaves what it inherited to the parent.
    """

    def __init__(self, environment: "_Environment", readonly: bool) -> None:
        self._environment: _Environment | None = environment
        self.path, self.readonly = environment.path, readonly

    @classmethod
    def create(cls, path: Path, *, map_bytes: int = MAP_BYTES) -> Self:
        """Make an empty index in the directory `path`, durably, and open it.

        Raises:
            AlreadyExists: there is one.
            UnsuitablePlace: the directory is on a network file system.
        """
        _check_place(path)
        fs.make_dirs(path)
        if fs.exists(path / "data.mdb"):
            raise AlreadyExists(f"there is an index at {path}")
        try:
            _make(path, map_bytes)
        except ChainError:
            for name in ("data.mdb", "lock.mdb"):
                fs.unlink(path / name, missing_ok=True)
            raise
        return cls.open(path, map_bytes=map_bytes)

    @classmethod
    def open(cls, path: Path, *, readonly: bool = False, map_bytes: int = MAP_BYTES) -> Self:
        """Open the index in the directory `path`.

        Args:
            map_bytes: address space to begin with (an index that needs more gets more).

        Raises:
            Damaged: there is none, or it cannot be read.
            UnsuitablePlace: LMDB cannot work there.
        """
        _check_place(path)
        return cls(_Environment.share(path, readonly, map_bytes), readonly)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read(self) -> Reader:
        """Return a transaction to read in, to be used in a `with` statement; they may be nested and be many."""
        return Reader(self._shared())

    def write(self) -> Writer:
        """Return a transaction to write in, to be used in a `with` statement.  The caller holds the publish lock.

        Leaving the block raises StoreFull or StorageError if the commit failed; nothing is changed then.
        """
        if self.readonly:
            raise ReadOnly(f"the index at {self.path} was opened for reading")
        return Writer(self._shared(), write=True)

    def ensure_room(self, more_bytes: int) -> None:
        """Make sure that a transaction which puts `more_bytes` of keys and values will fit into the map.

        The caller holds the publish lock and has no transaction open in this thread; those of other threads are
        waited for, if the map must grow.
        """
        self._shared().ensure_room(more_bytes)

    def drop_dead_readers(self) -> int:
        """Free what transactions of processes that died still hold, and return how many there were."""
        return self._shared().drop_dead_readers()

    @property
    def inode(self) -> tuple[int, int]:
        """(device, inode) of `data.mdb`: an index put in its place has another."""
        return self._shared().key

    def used_bytes(self) -> int:
        """Return how much of the map is in use, free pages included: the size that `data.mdb` has grown to."""
        return self._shared().used_bytes()

    def close(self) -> None:
        """Give this handle up; the last one of a process closes the environment.  Again is fine."""
        environment, self._environment = self._environment, None
        if environment is not None:
            environment.release()

    @staticmethod
    def verify_file(path: Path) -> list[str]:
        """Return what is wrong with the structure of the index in the directory `path`; [] if nothing is.

        Does not open it with LMDB, so no file, whatever is in it, can make it crash.  Rows are not looked at: reading
        them does that.  Hold the publish lock, or a commit under way looks like damage.

        Cost: 7 to 10 ms a MB.
        """
        try:
            return list(verify(str(path / "data.mdb"), subdir=False))  # type: ignore[no-untyped-call]
        except (VerifyError, OSError) as error:
            return [str(error)]
        except _ASTRAY as error:  # hostile bytes
            return [f"cannot be walked: {type(error).__name__}: {error}"]

    def _shared(self) -> "_Environment":
        if self._environment is None:
            raise StorageError(f"the index at {self.path} was closed by this process")
        return self._environment


class _Environment:
    """One LMDB environment, shared by all handles of a process, and everything that may go wrong with it."""

    def __init__(self, path: Path, key: tuple[int, int], readonly: bool, map_bytes: int) -> None:
        self.path, self.key, self.readonly, self.map_bytes = path, key, readonly, map_bytes
        self.users = 0
        self.recent = recent.Cache()
        self.tables: dict[str, lmdb._Database] = {}
        self._env: lmdb.Environment | None = None
        self.gate = Gate()
        self._open: set[Reader] = set()
        self._lockless = False  # this process may not write lock.mdb: writers cannot see its readers

    # -- sharing ---------------------------------------------------------------------------------------------------

    @classmethod
    def share(cls, path: Path, readonly: bool, map_bytes: int) -> "_Environment":
        """Return the environment at `path`, opened if this process has not yet, with one user more."""
        with _registry.lock:
            key = _inode(path)
            shared = _registry.environments.get(key)
            if shared is None:
                shared = cls(path, key, readonly, map_bytes)
                shared.reopen()
                _registry.environments[key] = shared
            elif shared.readonly and not readonly:
                shared.reopen(readonly=False)
            shared.users += 1
            return shared

    def release(self) -> None:
        """Take one user off; close after the last."""
        with _registry.lock:
            self.users -= 1
            if self.users == 0:
                _registry.environments.pop(self.key, None)
                env, self._env = self._env, None
                if env is not None:
                    env.close()

    def leave_to_parent(self) -> None:
        """In a forked child: let go of everything inherited without closing it.

        Ending an inherited transaction, or closing its environment, would free the parent's slot in the table of
        readers, and with it the pages the parent is reading (measured).  Merely dropping the objects does not.
        """
        for reader in self._open:
            reader._txn, reader._inherited = None, True
            reader._runs = reader._tables = None
        self._open, self.gate = set(), Gate()
        self._env, self.tables = None, {}

    def reopen(self, readonly: bool | None = None) -> None:
        """Open the environment, closing it first if it is open; waits until no transaction is."""
        with self.gate.alone():
            env, self._env = self._env, None
            if env is not None:
                env.close()
            self.recent.last = recent.Cache().last
            wanted = self.readonly if readonly is None else readonly
            try:
                self._env, self.tables = self._open_checked(wanted)
            except FileNotFoundError as error:  # a rebuild took it away just now
                raise Damaged(f"there is no index at {self.path}", hint=REBUILD) from error
            self.readonly = wanted

    def _open_checked(self, readonly: bool) -> "tuple[lmdb.Environment, dict[str, lmdb._Database]]":
        if _inode(self.path) != self.key:
            raise StorageError(f"another index was put at {self.path}", hint="open the repository anew")
        _check_not_empty(self.path)
        self._lockless = readonly and not os.access(self.path / "lock.mdb", os.R_OK | os.W_OK)
        try:
            env = self._map(readonly)
        except lmdb.Error as error:
            raise self.failure(error, "open the index") from error
        try:
            self._check_length(env)
            env.reader_check()
            tables = _open_tables(env, readonly)
        except lmdb.Error as error:
            env.close()
            raise self.failure(error, "open the tables of the index") from error
        except (ChainError, FileNotFoundError):
            env.close()
            raise
        return env, tables

    def _map(self, readonly: bool) -> lmdb.Environment:
        if not self._lockless:
            _back_locks(self.path / "lock.mdb")
        for size in (self.map_bytes, *(smaller for smaller in _SMALLER_MAPS if smaller < self.map_bytes)):
            try:
                return _open_lmdb(self.path, size, readonly, locks=not self._lockless)
            except lmdb.MemoryError as error:
                refused = error
        raise refused

    def _check_length(self, env: lmdb.Environment) -> None:
        """Refuse a file that was cut: reading past its end through the map would kill the process.

        Pages at the end may never have been written (they were freed in the transaction that took them), so a short
        file is only walked, not refused.
        """
        if fs.size_of(self.path / "data.mdb") < (env.info()["last_pgno"] + 1) * env.stat()["psize"]:
            problems = Index.verify_file(self.path)
            if problems:
                raise Damaged(f"the index at {self.path} is cut off: {problems[0]}", hint=REBUILD)

    # -- transactions ----------------------------------------------------------------------------------------------

    def begin(self, reader: Reader) -> None:
        """Open the transaction of `reader`, with what it takes: a new mapping, a larger map, dead readers removed."""
        remedy: Callable[[], object]
        for _ in range(4):
            thread = self.gate.enter()
            try:
                if self._env is not None:
                    reader._txn = self._env.begin(write=reader._write)
                    reader._thread = thread
                    self._open.add(reader)
                    return
                if not self.users:
                    raise StorageError(f"the index at {self.path} was closed by this process")
                remedy = self.reopen
            except lmdb.MapResizedError:
                remedy = partial(self._resize_map, 0)
            except lmdb.PanicError:  # a failed commit left LMDB unsure of its newest page
                remedy = self.reopen
            except lmdb.ReadersFullError as error:
                remedy = self.drop_dead_readers
                if not remedy():
                    raise self.failure(error, "open a transaction") from error
            except lmdb.Error as error:
                raise self.failure(error, "open a transaction") from error
            finally:
                if reader._txn is None:
                    self.gate.leave(thread)
            remedy()
        raise StorageError(f"the index at {self.path} does not come to rest", hint="try again")

    def end(self, reader: Reader, commit: bool) -> None:
        """End the transaction of `reader`; nothing is done to one that a forked child inherited."""
        if commit and reader._txn is not None:
            try:
                reader._flush()
            except BaseException:
                self.end(reader, commit=False)
                raise
        txn, reader._txn = reader._txn, None
        reader._runs = reader._tables = None
        if txn is None:
            if commit and reader._inherited:
                raise ForkedHandle("a transaction on the index does not live on in a forked process")
            return
        self._open.discard(reader)
        try:
            if commit:
                txn.commit()
            else:
                txn.abort()
        except lmdb.Error as error:
            raise self.failure(error, "commit to the index") from error
        finally:
            self.gate.leave(reader._thread)
        if commit:
            fs.changed("index commit", self.path / "data.mdb", ())

    def check_unmoved(self, reader: Reader) -> None:
        """Without locks, refuse what was read if pages may have been reused under the reader.

        Pages of the newest state are reused no sooner than two commits later, so while ours is still the newest what
        was read is right.
        """
        if self._lockless and self._env is not None and self._env.info()["last_txnid"] != reader._opened().id():
            raise StorageError(
                f"the index at {self.path} was changed while it was read without locks",
                hint="run the command again, or give this user write access so that writers can see its readers",
            )

    def ensure_room(self, more_bytes: int) -> None:
        """See `Index.ensure_room`."""
        copied = self.used_bytes()  # a transaction copies each page at most once, however scattered its rows
        needed = self.used_bytes() + copied + _ROOM_FACTOR * more_bytes + min(_ROOM_BYTES, self.map_bytes // 4)
        size = self._opened().info()["map_size"]
        if needed > size:
            while size < needed:
                size *= 2
            self._resize_map(size)
            self.map_bytes = max(self.map_bytes, size)

    def _resize_map(self, size: int) -> None:
        """Exchange the map for one of `size` bytes; 0: of the size that another process has grown it to."""
        with self.gate.alone():
            try:
                if self._env is not None:
                    self._env.set_mapsize(size)
            except lmdb.Error as error:
                raise self.failure(error, "resize the map of the index") from error

    def drop_dead_readers(self) -> int:
        """See `Index.drop_dead_readers`."""
        return self._opened().reader_check()

    def used_bytes(self) -> int:
        """See `Index.used_bytes`."""
        env = self._opened()
        return (env.info()["last_pgno"] + 1) * env.stat()["psize"]

    def _opened(self) -> lmdb.Environment:
        while (env := self._env) is None:
            self.reopen()
        return env

    # -- errors ----------------------------------------------------------------------------------------------------

    def failure(self, error: lmdb.Error, doing: str) -> ChainError:
        """Return the error of ours that says what LMDB's means."""
        what = f"cannot {doing} at {self.path}: {error}"
        if isinstance(error, _DAMAGE):
            return Damaged(what, hint=REBUILD)
        if isinstance(error, lmdb.LockError):
            return UnsuitablePlace(
                f"{what}: a process of the same number in another container uses this index",
                hint="let the containers share one pid namespace, or give each its own index with index_dir=",
            )
        if isinstance(error, lmdb.BadValsizeError):
            return InvalidInput(f"{what}: a key has 1 to {MAX_KEY_BYTES} bytes")
        if isinstance(error, lmdb.MapFullError):
            return StorageError(f"{what}: the transaction is larger than the room that was made for it")
        if "already open" in str(error):
            return ForkedHandle(f"a transaction on {self.path} was under way in another thread during the fork")
        code = getattr(error, "code", 0)  # errors of py-lmdb itself have none
        if code in _FULL or (code == errno.EIO and _is_full(self.path)):
            return StoreFull(f"no space left: {what}")
        if code > 0:
            return fs.translate(OSError(code, str(error)), doing, self.path)
        return StorageError(what)


_ASTRAY = (ValueError, LookupError, ArithmeticError, TypeError, struct.error, RecursionError, MemoryError)

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_DAMAGE = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.VersionMismatchError,
    lmdb.InvalidError,
    lmdb.IncompatibleError,
    lmdb.NotFoundError,  # a table is missing
    lmdb.CursorFullError,  # a tree deeper than any can be
    lmdb.PageFullError,
    lmdb.BadDbiError,
)


class _Registry:
    """The environments that this process has open."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.environments: dict[tuple[int, int], _Environment] = {}
        self.held: list[_Environment] = []

    def before_fork(self) -> None:
        """Let other threads finish the call they are in, and begin none."""
        self.held = list(self.environments.values())
        for environment in self.held:
            environment.gate.hold(lambda thread: is_in(thread, __file__), _FORK_PATIENCE_SECONDS)

    def after_fork_in_parent(self) -> None:
        """Go on."""
        for environment in self.held:
            environment.gate.release()

    def after_fork_in_child(self) -> None:
        """Leave everything inherited to the parent."""
        self.lock, self.held = threading.Lock(), []
        for environment in self.environments.values():
            environment.leave_to_parent()


_registry = _Registry()
os.register_at_fork(
    before=_registry.before_fork,
    after_in_parent=_registry.after_fork_in_parent,
    after_in_child=_registry.after_fork_in_child,
)


def _open_lmdb(path: Path, map_bytes: int, readonly: bool, locks: bool) -> lmdb.Environment:
    """Open with the rules that hold for every environment of ours.

    Never `writemap` (a full disk would be a SIGBUS), never without sync; `meminit` stays on, or pages would carry
    whatever the heap held, plaintext too.  The data format is that of LMDB 0.9.
    """
    return lmdb.open(
        str(path),
        map_size=map_bytes,
        readonly=readonly,
        lock=locks,
        create=False,
        mode=0o777,
        max_dbs=len(_EVERY_TABLE),
        max_readers=MAX_READERS,
        lib_version=0,
    )


def _back_locks(path: Path) -> None:
    """Take the disk space of LMDB's lock file before LMDB maps it: writing to a hole of a full disk is a SIGBUS.

    Nobody in this process has the file open, or closing it here would give LMDB's locks back.

    Raises:
        StoreFull: the disk has no space for its first page, which is all that the first 60 transactions need.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            os.posix_fallocate(fd, 0, 64 * (MAX_READERS + 2))  # a cache line for each, and two of its own
        except OSError as error:
            # (a file system with blocks of 1 KiB may have room for a part of a page, which is a hole all the same)
            if error.errno not in _FULL or os.fstat(fd).st_blocks * 512 < mmap.PAGESIZE:
                raise
        finally:
            os.close(fd)
    except OSError as error:
        raise fs.translate(error, "make room for the locks in", path) from error


def _open_tables(env: lmdb.Environment, readonly: bool) -> "dict[str, lmdb._Database]":
    """Return the handles of all tables.

    py-lmdb keeps a handle only from a transaction that it really commits: a writing one, or the one of its own that
    it takes in an environment opened for reading (measured: with any other, EINVAL at the first use).
    """
    if readonly:
        tables = {name: env.open_db(name.encode(), create=False) for name in TABLES}
        with suppress(lmdb.NotFoundError):  # an index of before there was this table, which no writer has opened since
            tables[RECENT] = env.open_db(RECENT.encode(), create=False)
        return tables
    with env.begin(write=True) as txn:
        return {name: env.open_db(name.encode(), txn=txn, create=name == RECENT) for name in _EVERY_TABLE}


def _make(path: Path, map_bytes: int) -> None:
    """Let LMDB make its files in `path`, with every table, and make their names durable (LMDB does not)."""
    blank = _Environment(path, (0, 0), False, map_bytes)
    try:
        env = blank._map(readonly=False)
        try:
            with env.begin(write=True) as txn:
                for name in _EVERY_TABLE:
                    env.open_db(name.encode(), txn=txn)
        finally:
            env.close()
    except lmdb.Error as error:
        raise blank.failure(error, "make an index") from error
    fs.changed("index commit", path / "data.mdb", ())
    fs.sync_dir(path)


def _check_place(path: Path) -> None:
    mount = fs.find_mount(path)
    if mount.network:
        raise UnsuitablePlace(
            f"{path} is on {mount.type}, where the memory map of an index is not safe",
            hint="keep the index on a local disk: open the repository with index_dir=LOCAL_DIRECTORY",
        )


def _check_not_empty(path: Path) -> None:
    """Refuse what LMDB would take for a new, empty database."""
    with fs.open_file(path / "data.mdb") as file:
        size, head = file.size(), file.pread(0, _PAGE_BYTES)
    if size < 2 * _PAGE_BYTES or not any(head):
        raise Damaged(f"the index at {path} is empty or cut off ({size} bytes)", hint=REBUILD)


def _inode(path: Path) -> tuple[int, int]:
    try:
        return fs.inode_of(path / "data.mdb")
    except FileNotFoundError as error:
        raise Damaged(f"there is no index at {path}", hint=REBUILD) from error


def _is_full(path: Path) -> bool:
    """Whether a write that failed with EIO met a full disk or a limit: LMDB reports a short write so."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    grown = fs.size_of(path / "data.mdb")
    return fs.free_bytes(path) < _SCARCE_BYTES or (limit != resource.RLIM_INFINITY and grown + _SCARCE_BYTES > limit)


def _seek(cursor: "lmdb.Cursor[bytes]", prefix: bytes, start: bytes | None, reverse: bool) -> bool:
    """Put a cursor on the first row of a scan, or return False; the caller still compares its prefix."""
    if not reverse:
        first = max(prefix, start or b"")
        return cursor.set_range(first) if first else cursor.first()
    end = successor(prefix)
    if start is not None and (end is None or start < end):
        if cursor.set_range(start):
            return cursor.key() == start or cursor.prev()
        return cursor.last()
    return cursor.prev() if end is not None and cursor.set_range(end) else cursor.last()
