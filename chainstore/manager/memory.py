"""Memory that captures go into: anonymous, shared with another process by file descriptor, warm before it is needed.

A buffer for another process is a memfd: a file without a name, outside every file system.  It is not bounded by the
size of `/dev/shm`, and is gone when the last process that holds it is: nothing is left behind by a SIGKILL.  Where
there is none (or its size is limited) a buffer is plain anonymous memory, `fd` -1, which no other process can see.

Pages are touched when a buffer is made.  A page's first write costs the kernel's zeroing and a fault: measured, the
first copy into fresh pages takes 12 times as long as one into warm ones (populated beforehand: as long as a warm one).
MADV_POPULATE_WRITE does it and, unlike MAP_POPULATE and unlike writing, answers a shortage with an error.

Fork: the child of a fork (a DataLoader's worker) sees zeros of its own at the addresses of every buffer, so that it
can neither change a capture nor keep its memory alive; `view` and `ensure` raise there.  The descriptor is closed in
the child, and on exec.  Only a fork that bypasses Python keeps a writable mapping.

Nothing here needs torch: the writer process imports this package.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import weakref
from collections.abc import Callable
from typing import Final

from chainstore.errors import ForkedHandle, MemoryShort
from chainstore.limits import memory_left

__all__ = ["HEADROOM", "Buffer", "make_buffer", "memory_left"]

HEADROOM: Final = 32 << 20  # bytes that are left to everybody else

_UNIT: Final = 2 << 20  # buffers are whole huge pages
_MADV_HUGEPAGE: Final = 14
_MADV_WIPEONFORK: Final = 18
_MADV_POPULATE_WRITE: Final = 23
_MFD_NOEXEC_SEAL: Final = 8
_ADD_SEALS: Final = 1033
_SEAL_SIZE: Final = 2 | 4  # never shorter (who reads it would get SIGBUS), never longer
_SEAL_FUTURE_WRITE: Final = 16
_MAP_FIXED: Final = 16
_NO_MEMORY: Final = frozenset({errno.ENOMEM, errno.ENOSPC, errno.EDQUOT})

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Buffer:
    """Warm writable memory of one process, which another may read through a descriptor.

    One thread uses it at a time.  Whoever gets the descriptor can map it for reading only, and must map it anew when
    `version` is another one.

    Attributes:
        fd: of the memfd; -1 if this is memory of this process alone.
        address: of the first byte; 0 while it holds none.
        capacity: bytes.
        version: counts the memory this buffer has had; 0 while it never had any.
        before_release: called once when this memory is about to go away, by whoever told a driver about it.
    """

    def __init__(self, shared: bool) -> None:
        self.fd, self.address, self.capacity, self.version = -1, 0, 0, 0
        self.before_release: Callable[[], object] | None = None
        self._shared, self._forked, self._closed = shared, False, False
        self._map: mmap.mmap | None = None
        self._view = memoryview(bytearray())
        _BUFFERS.add(self)

    @property
    def view(self) -> memoryview:
        """All of it, as writable unsigned bytes; slices of it keep the memory alive whatever becomes of the buffer."""
        self._check()
        return self._view

    def ensure(self, nbytes: int) -> None:
        """Hold at least `nbytes`, in warm pages; what was in the buffer is lost if that takes other memory.

        Raises:
            MemoryShort: there is less memory than that; the buffer then holds none, and may be asked again.
        """
        self._check()
        if nbytes <= self.capacity:
            return
        self._release()
        size, left = _whole_units(nbytes), memory_left()
        roomy = _whole_units(nbytes + nbytes // 16)  # one that grew once will again: a list, a loader's state
        if self.version and roomy + HEADROOM <= left:
            size = roomy
        if size + HEADROOM > left:
            raise MemoryShort(nbytes, max(0, left - HEADROOM))
        try:
            self._make(size)
        except OSError as error:
            self._release()
            if error.errno in _NO_MEMORY:
                raise MemoryShort(nbytes, left) from error
            raise
        self.version += 1

    def close(self) -> None:
        """Give the memory back, or leave that to the last slice of `view`; again is fine."""
        self._closed = True
        self._release()

    def _check(self) -> None:
        if self._forked:
            raise ForkedHandle(
                "the memory of captures was used in a forked child, which does not have it",
                hint="snapshots are for the process that made the manager; make another one in the child",
            )
        if self._closed:
            raise ValueError("the buffer is closed")

    def _make(self, size: int) -> None:
        # Python's map owns the addresses, and so does not duplicate the descriptor; the memfd is laid over them.
        self._map = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.fd = _make_memfd(size) if self._shared else -1
        if self.fd >= 0:
            _map_over(self.address, size, mmap.MAP_SHARED, self.fd)
            _seal(self.fd)
        else:
            _libc.madvise(self.address, size, _MADV_WIPEONFORK)
        _warm(self.address, size, self.fd)
        self._view, self.capacity = memoryview(self._map), size

    def _release(self) -> None:
        tell, self.before_release = self.before_release, None
        if tell is not None and not self._forked:
            tell()
        self._view, self.address, self.capacity = memoryview(bytearray()), 0, 0
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        held, self._map = self._map, None
        if held is not None:
            try:
                held.close()
            except BufferError:
                return  # somebody still reads a slice: the last one takes the memory along

    def _in_child(self) -> None:
        """Have zeros in place of what the parent holds; called in a forked child before anything else runs there."""
        self._forked = True
        if self.fd >= 0 and self._map is not None:
            os.close(self.fd)
            self.fd = -1
            _map_over(self.address, len(self._map), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)


_BUFFERS: Final[weakref.WeakSet[Buffer]] = weakref.WeakSet()


def _leave_parents_memory() -> None:
    for buffer in list(_BUFFERS):
        buffer._in_child()


os.register_at_fork(after_in_child=_leave_parents_memory)


def make_buffer(nbytes: int, *, shared: bool) -> Buffer:
    """Return a buffer of at least `nbytes` bytes, in warm pages; 0 leaves the size to the first `ensure`.

    Args:
        shared: memory that another process can read, if this system has it: look at `fd`.

    Raises:
        MemoryShort: the host's memory, or the limit of a cgroup, forbids it.

    Cost: about 0.6 ms for a MiB, all of it the kernel's, without the GIL.
    """
    buffer = Buffer(shared)
    if nbytes:
        buffer.ensure(nbytes)
    return buffer


def _whole_units(nbytes: int) -> int:
    return -(-nbytes // _UNIT) * _UNIT


def _make_memfd(size: int) -> int:
    """Return a memfd of `size` bytes, -1 where this system gives none (or none so large)."""
    try:
        fd = _open_memfd()
    except AttributeError:
        return -1
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):  # for now
            raise
        return -1
    try:
        os.ftruncate(fd, size)
    except OSError as error:
        os.close(fd)
        if error.errno in _NO_MEMORY:
            raise
        return -1  # `ulimit -f` counts memfds as files
    return fd


def _open_memfd() -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create("chainstore-capture", flags | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create("chainstore-capture", flags)  # Linux before 6.3


def _seal(fd: int) -> None:
    """Fix the size of a memfd, and let nobody map it for writing from now on; the latter needs Linux 5.1."""
    for seals in (_SEAL_SIZE, _SEAL_FUTURE_WRITE):
        try:
            fcntl.fcntl(fd, _ADD_SEALS, seals)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise


def _map_over(address: int, size: int, flags: int, fd: int) -> None:
    mapped = _libc.mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags | _MAP_FIXED, fd, 0)
    if mapped != address:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _warm(address: int, size: int, fd: int) -> None:
    """Have every page of fresh memory in place, in huge pages where the system gives them for the asking."""
    _libc.madvise(address, size, _MADV_HUGEPAGE)
    while _libc.madvise(address, size, _MADV_POPULATE_WRITE):
        code = ctypes.get_errno()
        if code == errno.EINVAL:  # Linux before 5.14
            if fd >= 0:
                os.posix_fallocate(fd, 0, size)  # answers a shortage with an error; writing would get SIGBUS
            ctypes.memset(address, 0, size)
            return
        if code not in (errno.EINTR, errno.EAGAIN):
            # EFAULT: the pages could not be had, where reading or writing would get SIGBUS.
            raise OSError(errno.ENOMEM if code == errno.EFAULT else code, os.strerror(code))
