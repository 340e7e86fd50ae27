"""A file system that does in a folder of another one what it is asked to do.

Inode numbers are those of the folder and locks are the kernel's own.
"""

import ctypes
import os
from collections.abc import Iterable

os.environ.setdefault("FUSE_LIBRARY_NAME", "fuse3")  # read when mfusepy is imported
import mfusepy

NAMELESS = ".fuse_hidden"  # libfuse renames a file that is unlinked while it is open, until it is closed
_NOBODY_ELSE_CHANGES_IT_SECONDS = 3600.0
_STAT = ("st_atime", "st_ctime", "st_mtime")
_STATFS = ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_favail", "f_ffree", "f_files", "f_frsize", "f_namemax")
_libc = ctypes.CDLL(None, use_errno=True)


class Passthrough(mfusepy.Operations):
    """Does in the folder `backing` what it is asked to do; handles are descriptors of the folder's files."""

    use_ns = True

    def __init__(self, backing: str, limbo: str) -> None:
        self._backing, self._limbo = backing, limbo

    def init_with_config(self, conn_info: object, config_3: mfusepy.fuse_config | None) -> None:
        assert config_3 is not None
        config_3.use_ino = config_3.kernel_cache = 1
        config_3.attr_timeout = config_3.entry_timeout = _NOBODY_ELSE_CHANGES_IT_SECONDS
        config_3.nullpath_ok = 1  # what has a handle needs no path

    def at(self, path: str) -> str:
        """Return where a file of the mount lies: those that are open and have no name any more, outside of it."""
        name = path.rpartition("/")[2]
        return f"{self._limbo}/{name}" if name.startswith(NAMELESS) else self._backing + path

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        found = os.fstat(fh) if fh is not None else os.lstat(self.at(path))
        fields = {name: getattr(found, name) for name in dir(found) if name.startswith("st_") and name not in _STAT}
        return fields | {name: getattr(found, f"{name}_ns") for name in _STAT}

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self.at(path))
        return {name: getattr(found, name) for name in _STATFS}

    def create(self, path: str, mode: int, flags: int) -> int:  # type: ignore[override]
        return os.open(self.at(path), _server_flags(flags) | os.O_CREAT, mode)

    def open(self, path: str, flags: int) -> int:
        return os.open(self.at(path), _server_flags(flags))

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str | None, length: int, fh: int | None = None) -> int:
        os.truncate(self.at(path or "") if fh is None else fh, length)
        return 0

    def fallocate(self, path: str, mode: int, offset: int, size: int, fh: int) -> int:
        if _libc.fallocate(fh, mode, ctypes.c_int64(offset), ctypes.c_int64(size)):
            raise OSError(ctypes.get_errno(), "fallocate")
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        os.fsync(fh)
        return 0

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    def opendir(self, path: str) -> int:
        return os.open(self.at(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def readdir(self, path: str, fh: int) -> Iterable[tuple[str, dict[str, int], int]]:
        with os.scandir(fh) as entries:
            for entry in entries:
                found = entry.stat(follow_symlinks=False)
                yield entry.name, {"st_mode": found.st_mode, "st_ino": found.st_ino}, 0

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        os.fsync(fh)
        return 0

    def releasedir(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    def mkdir(self, path: str, mode: int) -> int:
        os.mkdir(self.at(path), mode)
        return 0

    def rmdir(self, path: str) -> int:
        os.rmdir(self.at(path))
        return 0

    def unlink(self, path: str) -> int:
        os.unlink(self.at(path))
        return 0

    def rename(self, old: str, new: str) -> int:
        os.replace(self.at(old), self.at(new))
        return 0

    def link(self, target: str, source: str) -> int:
        os.link(self.at(source), self.at(target))
        return 0

    def symlink(self, target: str, source: str) -> int:
        os.symlink(source, self.at(target))
        return 0

    def readlink(self, path: str) -> str:
        return os.readlink(self.at(path))

    def chmod(self, path: str, mode: int) -> int:
        os.chmod(self.at(path), mode)
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        os.chown(self.at(path), uid, gid)
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        os.utime(self.at(path), ns=times)
        return 0


def _server_flags(flags: int) -> int:
    """Return how to open a file that a program opens with `flags`: the kernel reads too, and says where it writes."""
    writing = flags & os.O_ACCMODE != os.O_RDONLY
    return flags & ~os.O_ACCMODE & ~os.O_APPEND | (os.O_RDWR if writing else os.O_RDONLY) | os.O_CLOEXEC
