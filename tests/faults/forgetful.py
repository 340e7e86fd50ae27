"""A file system that forgets at a power cut what nobody synced, as strictly as POSIX lets it.

Durable is only what an fsync made so: that of a file its bytes and length, not its name; that of a directory the
names in it.  At the cut, each 4 KiB page written since then is kept or lost by itself; a length that changed is the
old one, the new one, or where the file grew one in between; and of what happened to the names in a directory a
beginning is kept.

The folder always shows what the programs see.  What is kept here is the way back: the durable bytes of pages that
were overwritten, the durable names of directories.  No inode is freed before the end, so its number stands for it.
"""

import errno
import json
import os
import random
import shutil

from tests.faults.durable import PAGE_BYTES, Directory, Names, Unsynced
from tests.faults.fuse_mount import CUT
from tests.faults.passthrough import NAMELESS, Passthrough


class Forgetful(Passthrough):
    """Passes through until the power is cut, which leaves in the folder what survived; then everything is EIO.

    `fuse_mount.cut_power` tells when: by an attribute of the root that is set, so that it comes in its turn.
    """

    def __init__(self, backing: str, limbo: str) -> None:
        super().__init__(backing, limbo)
        self._unsynced: dict[int, Unsynced] = {}
        self._directories: dict[int, Directory] = {}
        self._synchronous: set[int] = set()
        self._removed = self._steps = self._cut_at = 0
        self._seed, self._report = 0, ""
        self._off = False
        for folder, _, _ in os.walk(backing):
            self._directories[_inode(folder)] = Directory({entry.name: entry.inode() for entry in os.scandir(folder)})

    def setxattr(self, path: str, name: str, value: bytes, options: int, position: int = 0) -> int:
        if name != CUT:
            raise OSError(errno.ENOTSUP, name)
        order = json.loads(value)
        self._seed, self._report = order["seed"], order["report"]
        self._cut_at = self._steps + order["after"]
        if not order["after"]:
            self._cut()
        return 0

    def at(self, path: str) -> str:
        self._check_power()
        return super().at(path)

    def _check_power(self) -> None:
        if self._off:
            raise OSError(errno.EIO, "the power is off")

    def _step(self) -> None:
        """Pass a moment at which the power may be cut: before a change or a sync."""
        self._check_power()
        self._steps += 1
        if self._steps == self._cut_at:
            self._cut()
            self._check_power()

    # Files.

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        self._check_power()
        return super().getattr(path, fh)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        self._check_power()
        return super().read(path, size, offset, fh)

    def create(self, path: str, mode: int, flags: int) -> int:  # type: ignore[override]
        self._step()
        new = not os.path.exists(self.at(path))
        handle = self._remember(super().create(path, mode, flags), flags)
        if new:
            self._change(path, _inode(handle))
        return handle

    def open(self, path: str, flags: int) -> int:
        if flags & os.O_TRUNC:
            self.truncate(path, 0)
        return self._remember(super().open(path, flags), flags)

    def _remember(self, handle: int, flags: int) -> int:
        self._synchronous.discard(handle)
        if flags & (os.O_SYNC | os.O_DSYNC):
            self._synchronous.add(handle)
        return handle

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._step()
        self._touch(fh, offset, len(data))
        written = super().write(path, data, offset, fh)
        if fh in self._synchronous:
            self._unsynced.pop(_inode(fh), None)
        return written

    def truncate(self, path: str | None, length: int, fh: int | None = None) -> int:
        self._step()
        handle = os.open(self.at(path or ""), os.O_RDWR) if fh is None else fh
        try:
            self._touch(handle, length, max(0, os.fstat(handle).st_size - length))
            return super().truncate(path, length, handle)
        finally:
            if fh is None:
                os.close(handle)

    def fallocate(self, path: str, mode: int, offset: int, size: int, fh: int) -> int:
        self._step()
        self._touch(fh, offset, size if mode else 0)
        return super().fallocate(path, mode, offset, size, fh)

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        self._step()
        self._unsynced.pop(_inode(fh), None)
        return 0

    def _touch(self, handle: int, offset: int, length: int) -> None:
        """Keep what is durable of a range before it changes."""
        file = self._unsynced.setdefault(_inode(handle), Unsynced(os.fstat(handle).st_size))
        for page in range(offset // PAGE_BYTES, -(-(offset + length) // PAGE_BYTES)):
            start = page * PAGE_BYTES
            if page not in file.pages:
                file.pages[page] = os.pread(handle, max(0, min(PAGE_BYTES, file.length - start)), start)

    # Names.

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        self._step()
        self._directories[_inode(fh)].sync()
        return 0

    def mkdir(self, path: str, mode: int) -> int:
        self._step()
        super().mkdir(path, mode)
        inode = _inode(self.at(path))
        self._directories[inode] = Directory()
        self._change(path, inode)
        return 0

    def rmdir(self, path: str) -> int:
        self._step()
        if os.listdir(self.at(path)):
            raise OSError(errno.ENOTEMPTY, path)
        self._put_away(path)
        self._change(path, None)
        return 0

    def unlink(self, path: str) -> int:
        if not _is_nameless(path):
            self._step()
            self._change(path, None)
        self._put_away(path)
        return 0

    def rename(self, old: str, new: str) -> int:
        self._step()
        inode = _inode(self.at(old))
        if os.path.exists(self.at(new)):
            self._put_away(new)
        super().rename(old, new)
        if _is_nameless(new):
            self._change(old, None)
        elif os.path.dirname(old) == os.path.dirname(new):
            self._directory(old).changes.append({_name(old): None, _name(new): inode})
        else:
            self._change(new, inode)
            self._change(old, None)
        return 0

    def link(self, target: str, source: str) -> int:
        self._step()
        super().link(target, source)
        self._change(target, _inode(self.at(target)))
        return 0

    def symlink(self, target: str, source: str) -> int:
        self._step()
        super().symlink(target, source)
        self._change(target, _inode(self.at(target)))
        return 0

    def _directory(self, path: str) -> Directory:
        return self._directories[_inode(self.at(os.path.dirname(path)))]

    def _change(self, path: str, inode: int | None) -> None:
        self._directory(path).changes.append({_name(path): inode})

    def _put_away(self, path: str) -> None:
        """Keep a file or directory whose name goes: the name may come back."""
        self._removed += 1
        os.rename(self.at(path), f"{self._limbo}/removed-{self._removed}")

    # The cut.

    def _cut(self) -> None:
        """Leave in the folder what survives."""
        source = random.Random(self._seed)
        found = _paths(self._backing) | _paths(self._limbo)
        for inode, file in self._unsynced.items():
            file.forget(found[inode], source)
        kept = {
            inode: folder.after(source.randint(0, len(folder.changes))) for inode, folder in self._directories.items()
        }
        survivors = f"{self._limbo}/survivors"
        _build(survivors, _inode(self._backing), kept, found)
        os.rename(self._backing, f"{self._limbo}/before")
        os.rename(survivors, self._backing)
        self._off = True
        with open(self._report, "w") as file:
            file.write(str(self._steps))


def _build(at: str, inode: int, kept: dict[int, Names], found: dict[int, str]) -> None:
    """Make directory `inode` anew, and what survives below it."""
    os.mkdir(at)
    shutil.copystat(found[inode], at)
    for name, below in kept[inode].items():
        if below in kept:
            _build(f"{at}/{name}", below, kept, found)
        else:
            os.link(found[below], f"{at}/{name}", follow_symlinks=False)


def _paths(top: str) -> dict[int, str]:
    """Return where each inode below a folder, and the folder, lies."""
    paths = {_inode(top): top}
    for folder, _, _ in os.walk(top):
        paths |= {entry.inode(): entry.path for entry in os.scandir(folder)}
    return paths


def _inode(of: str | int) -> int:
    return os.stat(of, follow_symlinks=isinstance(of, int)).st_ino


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _is_nameless(path: str) -> bool:
    return _name(path).startswith(NAMELESS)
