"""The work tree: which code a run runs, as git knows it - a revision, and what differs from that.

git may be missing, slow or stuck, and a work tree may be full of anything: whatever it is, a run only says less of
itself.  So nothing here is waited for by whoever trains.
"""

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from chainstore.ids import content_hash
from chainstore.repository import FileContent

GIT_DIFF: Final = "git.diff"
"""What the difference is called beside the state."""

_SECONDS = 5.0  # for each call of git
_MOST_BYTES = 1 << 20
_SHORT_BYTES = 1 << 10

# What `git apply` takes, wherever the call is made and whatever the user's configuration makes of `git diff`:
#   HEAD                  the index too, so that a file that was added is in it
#   --binary              binary files as well, instead of "Binary files differ"
#   --full-index          whole ids: `git apply -3` finds what it was made from, and the length of short ones, which
#                         grows with the repository, changes no byte
#   -M                    a renamed file, not two whole ones; as if `diff.renames` were at its default
#   --no-ext-diff ...     no program of the user makes something for people of it, no colours, prefixes or contexts
#   --submodule=short     a line that can be applied; what is changed within a submodule is not ours to store
_DIFF = (
    *("-c", "diff.relative=false", "diff", "--binary", "--full-index", "-M", "--no-color", "--no-ext-diff"),
    *("--no-textconv", "--src-prefix=a/", "--dst-prefix=b/", "-U3", "--inter-hunk-context=0"),
    *("--submodule=short", "--ignore-submodules=dirty", "HEAD", "--"),
)


@dataclass(frozen=True, slots=True)
class WorkTree:
    """What git said.

    Attributes:
        told: for the commit: revision, whether tracked files differ from it, and what became of the difference.
        files: the difference, to be stored beside the state; empty where there is none, or it is left out.
    """

    told: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, FileContent] = field(default_factory=dict)


def look(folder: str | os.PathLike[str], *, no_diff: str = "") -> WorkTree:
    """Return what git says of the work tree that a folder is in, nothing where it says nothing.

    Args:
        no_diff: why the difference is not to be stored.

    Cost: three calls of git, some seconds at most each; do it aside.
    """
    try:
        folder = os.path.abspath(folder)  # wherever the run goes meanwhile
    except OSError:
        return WorkTree()
    revision = _git(folder, "rev-parse", "HEAD", most=_SHORT_BYTES)
    if revision is None:
        return WorkTree()
    status = _git(folder, "status", "--porcelain", "--untracked-files=no", most=0)
    told: dict[str, Any] = {
        "revision": revision.decode(errors="replace").strip(),
        "dirty": None if status is None else bool(status),
    }
    if not status:
        return WorkTree(told)
    if no_diff:
        return WorkTree({**told, "diff": {"left_out": no_diff}})
    diff = _git(folder, *_DIFF, most=_MOST_BYTES)
    if diff is None:
        return WorkTree({**told, "diff": {"left_out": f"git failed, or took more than {_SECONDS:.0f} s"}})
    if len(diff) > _MOST_BYTES:
        return WorkTree({**told, "diff": {"left_out": f"it is larger than {_MOST_BYTES >> 20} MiB"}})
    if not diff:
        return WorkTree({**told, "diff": {"left_out": "only what submodules hold differs"}})
    named = {"name": GIT_DIFF, "bytes": len(diff), "blake3": content_hash(diff)}
    return WorkTree({**told, "diff": named}, {GIT_DIFF: FileContent(diff)})


def _git(folder: str | os.PathLike[str], *words: str, most: int) -> bytes | None:
    """Return what git says, None where it fails or takes too long; of what is longer than `most`, one byte more."""
    try:
        process = subprocess.Popen(
            ["git", "--no-optional-locks", *words],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # no terminal to ask questions on; and what it starts ends with it
        )
    except OSError:
        return None
    end = time.monotonic() + _SECONDS
    with process:
        try:
            said = _read(process, end, most)
            if len(said) > most:
                return said
            process.wait(max(0.0, end - time.monotonic()))
            return said if process.returncode == 0 else None
        except (OSError, subprocess.TimeoutExpired):
            return None
        finally:
            if process.poll() is None:
                with suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)


def _read(process: "subprocess.Popen[bytes]", end: float, most: int) -> bytes:
    """Return what a process says until it closes its output, or one byte more than `most`; TimeoutError after `end`."""
    assert process.stdout is not None
    fd, said = process.stdout.fileno(), bytearray()
    ready = select.poll()
    ready.register(fd, select.POLLIN)
    while len(said) <= most:
        if not ready.poll(max(0.0, end - time.monotonic()) * 1000):
            raise TimeoutError
        piece = os.read(fd, min(1 << 16, most + 1 - len(said)))
        if not piece:
            break
        said += piece
    return bytes(said)
