"""Disks of a few MiB, to be filled: ext4 on a loop device, and a file system in memory."""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KINDS = ("ext4", "tmpfs")
_PIECES = (1 << 20, 1 << 16, 1 << 12)


@contextmanager
def small_disk(kind: str, folder: Path, mebibytes: int) -> Iterator[Path]:
    """Mount an empty disk inside the block; needs root.

    Args:
        folder: an empty one, where the mount point is made, and the image of ext4.
    """
    at, image = folder / "disk", folder / "image"
    at.mkdir()
    if kind == "tmpfs":
        mount = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "none", str(at)]
    else:
        with open(image, "wb") as file:
            file.truncate(mebibytes << 20)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
        mount = ["mount", "-o", "loop", str(image), str(at)]  # the loop device goes with the mount
    subprocess.run(mount, check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", str(at)], check=True)
        image.unlink(missing_ok=True)


class Ballast:
    """A file that takes the space of a disk."""

    def __init__(self, disk: Path) -> None:
        self._path = disk / "ballast"

    def leave(self, nbytes: int) -> None:
        """Take everything, and give so much back."""
        with open(self._path, "ab", buffering=0) as file:
            for piece in _PIECES:
                _write_until_full(file.fileno(), bytes(piece))
            file.truncate(os.fstat(file.fileno()).st_size - nbytes)
            os.fsync(file.fileno())

    def drop(self) -> None:
        """Give everything back."""
        self._path.unlink()


def _write_until_full(handle: int, piece: bytes) -> None:
    try:
        while os.write(handle, piece) == len(piece):
            pass
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
