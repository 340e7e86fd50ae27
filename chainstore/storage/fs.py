"""All our file I/O: what chainstore does to a disk, it does through these few operations (LMDB's own I/O aside).

One place, so that one place knows what a full disk looks like, that a failed fsync is never retried, that a
descriptor does not survive a fork, and so that tests can cut the power between any two operations: every
operation that changes something calls `failpoint(name, path)` first, and `changed(name, path, details)` once it is
done; both do nothing until a test replaces them.

FileNotFoundError and FileExistsError pass through as they are: they answer a question, and only the caller knows
what was asked.  Every other OSError becomes a `StorageError` or a `ReadOnly` that names the path.

    with open_file(path, write=True, create=True) as file:
        offset = file.append(header, payload)
        file.fdatasync()
    sync_dir(path.parent)                    # a new file's name is durable only now
"""

import ctypes
import errno
import fcntl
import os
import stat
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from chainstore.errors import ChainError, ForkedHandle, Malformed, ReadOnly, StorageError, StoreFull
from chainstore.storage.mounts import NOWHERE, Mount, mount_of, parse_mounts

Buffer = bytes | bytearray | memoryview

PARTS_PER_WRITE = 1024  # IOV_MAX of Linux: buffers one pwritev takes
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_REFUSED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, linux/falloc.h
_libc = ctypes.CDLL(None, use_errno=True)


def _do_nothing(name: str, path: Path) -> None:
    """Be the failpoint of ordinary life."""


def _tell_nobody(name: str, path: Path, details: tuple[object, ...]) -> None:
    """Be the witness of ordinary life."""


failpoint: Callable[[str, Path], None] = _do_nothing
"""Called before every operation that changes something, with its name and its path; tests replace it."""

changed: Callable[[str, Path, tuple[object, ...]], None] = _tell_nobody
"""Called after every operation that changed something, with what makes it up besides its name and path:

pwrite, append: offset, buffers (not to be kept)    truncate, preallocate: length    punch: offset, length
rename: the old path    create, unlink, mkdir, fdatasync, sync_dir, index commit: nothing
"""


class File:
    """An open file: a descriptor that knows its path, its process and whether it can still be trusted.

    Reads and writes name their offset, so threads may share it.  After a failed sync, or a write that failed for
    any reason but lack of space, nobody knows what is on disk: the handle is poisoned and every later use raises;
    open the file anew, look, and decide.

    A forked child may go on reading through a file opened for reading.  A file that was opened for writing or locked
    is closed in the child at once, because a lock taken with `flock` lives as long as any descriptor of it: a child
    that merely outlives its parent would keep the lock of the dead.  Using such a file there raises `ForkedHandle`.
    """

    __slots__ = ("__weakref__", "_fd", "_locked", "_pid", "_poison", "path", "writable")

    def __init__(self, fd: int, path: Path, writable: bool) -> None:
        self.path, self.writable = path, writable
        self._fd, self._pid = fd, os.getpid()
        self._poison: str | None = None
        self._locked = False
        if writable:
            _not_for_children.add(self)

    def __repr__(self) -> str:
        return f"File({str(self.path)!r}, {'writable' if self.writable else 'read only'})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0:
            os.close(fd)

    @property
    def trusted(self) -> bool:
        """Whether no failure has poisoned this handle."""
        return self._poison is None

    def size(self) -> int:
        """Return the length of the file in bytes."""
        return self._stat().st_size

    def allocated(self) -> int:
        """Return how many bytes the file takes on disk; holes take none."""
        return self._stat().st_blocks * 512

    def inode(self) -> tuple[int, int]:
        """Return (device, inode): what the descriptor holds, whatever its path names by now."""
        found = self._stat()
        return found.st_dev, found.st_ino

    def is_at(self, path: Path) -> bool:
        """Return whether `path` names this very file now."""
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _failure(error, "look at", path) from error
        return (found.st_dev, found.st_ino) == self.inode()

    def pread_into(self, buffer: bytearray | memoryview, offset: int) -> int:
        """Fill `buffer` from `offset` on and return how many bytes there were; fewer only at the end of the file."""
        fd, view, done = self._readable(), memoryview(buffer).cast("B"), 0
        try:
            while done < len(view):
                got = os.preadv(fd, [view[done:]], offset + done)
                if not got:
                    break
                done += got
        except OSError as error:
            raise _failure(error, "read", self.path) from error
        return done

    def pread(self, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset` on; fewer only at the end of the file."""
        buffer = bytearray(max(0, min(length, self.size() - offset)))
        return bytes(memoryview(buffer)[: self.pread_into(buffer, offset)])

    def pwrite(self, offset: int, *parts: Buffer) -> None:
        """Write `parts` one after the other from `offset` on.

        Raises:
            StoreFull: some of it may be written; truncate to take it back.
        """
        self._change("pwrite", lambda fd: _write_all(fd, parts, offset), (offset, *parts))

    def append(self, *parts: Buffer) -> int:
        """Write `parts` one after the other at the end of the file and return the offset where they start.

        One appender at a time: the end is looked up first.

        Raises:
            StoreFull: some of it may be written; truncate to take it back.
        """
        offset = self.size()
        self._change("append", lambda fd: _write_all(fd, parts, offset), (offset, *parts))
        return offset

    def truncate(self, length: int) -> None:
        """Cut the file to `length` bytes (or extend it with zeros)."""
        self._change("truncate", lambda fd: os.ftruncate(fd, length), (length,))

    def fdatasync(self) -> None:
        """Return once everything written is on disk.  A failure poisons: the kernel forgets what it could not write."""
        self._change("fdatasync", os.fdatasync, poison=True)

    def preallocate(self, length: int) -> None:
        """Make the file at least `length` bytes long, with disk space behind every one of them."""
        self._change("preallocate", lambda fd: os.posix_fallocate(fd, 0, length), (length,))

    def punch(self, offset: int, length: int) -> bool:
        """Give the disk space of a range back, which reads as zeros then; return whether this file system can."""
        try:
            self._change("punch", lambda fd: _punch(fd, offset, length), (offset, length))
        except _CannotPunch:
            return False
        return True

    def flock(self, exclusive: bool, blocking: bool = False) -> bool:
        """Lock the file against other descriptors of it, also in this process; return whether it is locked now.

        Args:
            exclusive: alone, or shared with other shared locks.  A lock held already is converted, not atomically.
            blocking: wait without limit.
        """
        self._changeable()
        how = (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | (0 if blocking else fcntl.LOCK_NB)
        try:
            failpoint("flock", self.path)
            fcntl.flock(self._fd, how)
        except BlockingIOError:
            return False
        except OSError as error:
            raise _failure(error, "lock", self.path) from error
        self._locked = True
        _not_for_children.add(self)
        return True

    def unlock(self) -> None:
        """Give the lock back; a poisoned handle may."""
        self._own()
        try:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        except OSError as error:
            raise _failure(error, "unlock", self.path) from error
        self._locked = False

    def fileno(self) -> int:
        """Return the descriptor, to be sent to another process: what it locks then stays locked while either lives."""
        return self._changeable()

    def close(self, *, unlock: bool = True) -> None:
        """Close the descriptor, which gives its lock back; again is fine.

        Args:
            unlock: False where another process was given the descriptor and is to keep the lock.
        """
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        try:
            if unlock and self._locked and self._pid == os.getpid():
                fcntl.flock(fd, fcntl.LOCK_UN)  # a child forked just now may still hold the descriptor, and so the lock
            os.close(fd)
        except OSError as error:
            raise _failure(error, "close", self.path) from error

    def _stat(self) -> os.stat_result:
        try:
            return os.fstat(self._readable())
        except OSError as error:
            raise _failure(error, "look at", self.path) from error

    def _own(self) -> None:
        if self._pid != os.getpid() and (self.writable or self._locked):
            raise ForkedHandle(f"{self.path} was opened for writing, or locked, before this process was forked")
        if self._fd < 0:
            raise StorageError(f"{self.path} was closed", hint="open it anew")

    def _readable(self) -> int:
        self._own()
        if self._poison:
            raise StorageError(f"{self.path} cannot be trusted since {self._poison}", hint="open it anew and look")
        return self._fd

    def _changeable(self) -> int:
        if self._pid != os.getpid():
            raise ForkedHandle(f"{self.path} was opened before this process was forked")
        return self._readable()

    def _change(
        self, name: str, operation: Callable[[int], None], details: tuple[object, ...] = (), poison: bool = False
    ) -> None:
        """Run one operation that changes the file; poison the handle if its outcome is unknown."""
        fd = self._changeable()
        try:
            failpoint(name, self.path)
            operation(fd)
        except OSError as error:
            if poison or error.errno not in _FULL | {errno.EBADF, errno.EINVAL}:
                self._poison = f"a failed {name} ({error.strerror or error})"
            raise _failure(error, name, self.path) from error
        changed(name, self.path, details)


_not_for_children: weakref.WeakSet[File] = weakref.WeakSet()


def _close_in_child() -> None:
    """Close what a forked child must not hold (see `File`)."""
    for file in list(_not_for_children):
        fd, file._fd = file._fd, -1
        if fd >= 0:
            os.close(fd)
    _not_for_children.clear()


os.register_at_fork(after_in_child=_close_in_child)


def open_file(path: Path, *, write: bool = False, create: bool = False, new: bool = False, mode: int = 0o666) -> File:
    """Open a file; its descriptor is not passed on to programs this process starts.

    Args:
        write: for reading and writing, else for reading only.
        create: make it, empty, if it is not there; `new`: make it, and fail if it is there.
        mode: permissions of a made file, less the umask.

    Raises:
        FileNotFoundError, FileExistsError: what they say.
        ReadOnly: it may not be opened for writing.
    """
    flags = os.O_CLOEXEC | (os.O_RDWR if write or create or new else os.O_RDONLY)
    flags |= (os.O_CREAT if create or new else 0) | (os.O_EXCL if new else 0)
    try:
        if flags & os.O_CREAT:
            failpoint("create", path)
        file = File(os.open(path, flags, mode), path, bool(flags & os.O_RDWR))
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        raise _failure(error, "open", path, writing=bool(flags & os.O_RDWR)) from error
    if flags & os.O_CREAT:
        changed("create", path, ())  # or opened: whether it was there is for the witness to know
    return file


def read_all(path: Path, limit: int) -> bytes:
    """Return the whole of a small file.

    Raises:
        FileNotFoundError: there is none.
        Malformed: it is longer than `limit` bytes, so not what it should be.
    """
    with open_file(path) as file:
        data = file.pread(0, limit + 1)
    if len(data) > limit:
        raise Malformed(str(path), f"longer than {limit} bytes")
    return data


def write_atomic(path: Path, data: Buffer, backup: Path | None = None, mode: int = 0o666) -> None:
    """Replace a small file so that whoever reads it, also after a crash, finds the old bytes or the new ones.

    Args:
        backup: a second file in which `data` is then put the same way; so one of them is whole at any moment.
        mode: permissions, less the umask.
    """
    for target in (path, backup):
        if target is not None:
            _write_atomic(target, data, mode)


def _write_atomic(path: Path, data: Buffer, mode: int) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident():x}.tmp")
    try:
        with open_file(draft, create=True, mode=mode) as file:
            file.truncate(0)  # what a crash may have left under this name
            file.append(data)
            file.fdatasync()
        rename(draft, path)
    except ChainError:
        with suppress(OSError):  # the first failure is the one to tell
            draft.unlink(missing_ok=True)
        raise


def make_dirs(path: Path, mode: int = 0o777) -> None:
    """Make a directory and what is missing above it, durably; one that is there is left as it is.

    Args:
        mode: permissions of what is made, less the umask.
    """
    missing = []
    while not is_dir(path):
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        try:
            failpoint("mkdir", directory)
            directory.mkdir(mode, exist_ok=True)
        except FileExistsError:
            raise  # a file of that name
        except OSError as error:
            raise _failure(error, "make directory", directory, writing=True) from error
        changed("mkdir", directory, ())
        sync_dir(directory.parent)


def sync_dir(path: Path) -> None:
    """Return once the names in a directory (files made, renamed and removed in it) are on disk."""
    try:
        failpoint("sync_dir", path)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _failure(error, "sync directory", path) from error
    changed("sync_dir", path, ())


def rename(source: Path, target: Path) -> None:
    """Give a file another name, replacing what has it, durably; both names are on one file system."""
    try:
        failpoint("rename", target)
        os.replace(source, target)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _failure(error, "rename to", target, writing=True) from error
    changed("rename", target, (source,))
    sync_dir(target.parent)
    if source.parent != target.parent:
        sync_dir(source.parent)


def unlink(path: Path, missing_ok: bool = False) -> None:
    """Remove a file's name; durable after `sync_dir`."""
    try:
        failpoint("unlink", path)
        path.unlink(missing_ok)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _failure(error, "remove", path, writing=True) from error
    changed("unlink", path, ())


def list_dir(path: Path) -> list[str]:
    """Return the names in a directory, sorted."""
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _failure(error, "list", path) from error


def size_of(path: Path) -> int:
    """Return the length in bytes of the file at `path`."""
    return _look(path).st_size


def inode_of(path: Path) -> tuple[int, int]:
    """Return (device, inode) of what `path` names now."""
    found = _look(path)
    return found.st_dev, found.st_ino


def exists(path: Path) -> bool:
    """Return whether anything has this name; a link that leads nowhere is nothing."""
    return _mode(path) != 0


def is_file(path: Path) -> bool:
    """Return whether a file has this name."""
    return stat.S_ISREG(_mode(path))


def is_dir(path: Path) -> bool:
    """Return whether a directory has this name."""
    return stat.S_ISDIR(_mode(path))


def _mode(path: Path) -> int:
    """Return what stat says the file is, 0 if there is none."""
    try:
        return os.stat(path).st_mode
    except OSError as error:
        if error.errno in _ABSENT:
            return 0
        raise _failure(error, "look at", path) from error


def stamp_of(path: Path) -> tuple[int, int, int]:
    """Return (inode, bytes, time of the last change in ns) of a file: another one once it was written to."""
    found = _look(path)
    return found.st_ino, found.st_size, found.st_mtime_ns


def _look(path: Path) -> os.stat_result:
    try:
        return os.stat(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _failure(error, "look at", path) from error


def free_bytes(path: Path) -> int:
    """Return how many bytes this user may still write on the file system of `path`."""
    try:
        found = os.statvfs(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _failure(error, "look at", path) from error
    return found.f_bavail * found.f_frsize


def is_ours_alone(path: Path) -> bool:
    """Return whether `path` is a directory, no link to one, of this user's, that nobody else may write to."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _failure(error, "look at", path) from error
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def may_write(path: Path) -> bool:
    """Return whether this user may make files in a directory: no on a file system that is mounted read-only."""
    return os.access(path, os.W_OK | os.X_OK)


def find_mount(path: Path) -> Mount:
    """Return the mount that `path`, which need not exist yet, lies on (or will); NOWHERE without Linux's /proc."""
    try:
        with open("/proc/self/mountinfo", encoding="latin-1") as file:
            text = file.read()
    except OSError:
        return NOWHERE
    resolved = os.fsencode(os.path.realpath(path)).decode("latin-1")  # mountinfo's octal escapes stand for bytes
    return mount_of(resolved, parse_mounts(text))


def file_system_type(path: Path) -> str:
    """Return "ext4", "nfs4", "fuse.sshfs"...; "" where it cannot be told."""
    return find_mount(path).type


def is_network_file_system(path: Path) -> bool:
    """Return whether another host may have the file system of `path` mounted too."""
    return find_mount(path).network


def translate(error: OSError, doing: str, path: Path) -> ChainError:
    """Return the error of ours that says what `error` means; for the one module with I/O of its own (the index)."""
    return _failure(error, doing, path, writing=True)


class _CannotPunch(Exception):
    """This file system has no holes."""


def _write_all(fd: int, parts: tuple[Buffer, ...], offset: int) -> None:
    left = [view for part in parts if (view := memoryview(part).cast("B")).nbytes]
    while left:
        done = os.pwritev(fd, left[:PARTS_PER_WRITE], offset)
        offset += done
        while left and done >= left[0].nbytes:
            done -= left.pop(0).nbytes
        if done:
            left[0] = left[0][done:]


def _punch(fd: int, offset: int, length: int) -> None:
    while _libc.fallocate(fd, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_int64(offset), ctypes.c_int64(length)):
        code = ctypes.get_errno()
        if code == errno.EINTR:  # Python makes its own calls again by itself
            continue
        if code in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise _CannotPunch
        raise OSError(code, os.strerror(code))


def _failure(error: OSError, doing: str, path: Path, writing: bool = False) -> ChainError:
    """Return the error of ours that says what `error` means."""
    what = f"cannot {doing} {path}: {error.strerror or error}"
    if error.errno in _FULL:
        return StoreFull(f"no space left: {what}{_room(path)}")
    if error.errno in _REFUSED and (writing or error.errno == errno.EROFS):
        return ReadOnly(what, hint="check the path's permissions and whether its file system is mounted read-only")
    return StorageError(what, hint="check the disk and the system's log; nothing that was committed is touched")


def _room(path: Path) -> str:
    try:
        found = os.statvfs(path if path.exists() else path.parent)
    except OSError:
        return ""
    return f" ({found.f_bavail * found.f_frsize / 1e6:.1f} MB free)"
