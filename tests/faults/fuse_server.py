"""The process behind a mount of `fuse_mount`.

python -m tests.faults.fuse_server BACKING AT SUBTYPE plain|forgetful
"""

import ctypes
import errno
import os
import signal
import sys
import tempfile

from tests.faults.forgetful import Forgetful
from tests.faults.passthrough import Passthrough, mfusepy

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Serving(mfusepy.FUSE):
    """mfusepy's dispatch, which forgets by which handle a file is cut: its name may be gone by then."""

    def truncate_fuse_3(self, path: bytes | None, length: int, fip: object) -> int:
        handle: int | None = fip.contents.fh if fip else None  # type: ignore[attr-defined]
        return self.operations.truncate(None if path is None else os.fsdecode(path), length, handle)


def serve(operations: Passthrough, at: str, subtype: str) -> None:
    """Mount, answer until unmounted or told to end; a parent that dies tells so too."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    os.umask(0)  # the kernel has taken the caller's from the mode already
    options = {"subtype": subtype} if subtype else {}
    Serving(operations, at, foreground=True, nothreads=True, default_permissions=True, fsname="chainstore", **options)


def main(backing: str, at: str, subtype: str, kind: str) -> None:
    if mfusepy.fuse_version_major != 3:
        raise OSError(errno.ENOSYS, "libfuse 3 is needed")
    with tempfile.TemporaryDirectory(prefix=".nameless-", dir=os.path.dirname(backing)) as limbo:
        operations = Forgetful(backing, limbo) if kind == "forgetful" else Passthrough(backing, limbo)
        serve(operations, at, subtype)


if __name__ == "__main__":
    main(*sys.argv[1:])
