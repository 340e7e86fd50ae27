"""A FUSE file system for a test, mounted for the length of a block.

with mounted(tmp_path / "backing", tmp_path / "at", subtype="glusterfs"):    mountinfo says fuse.glusterfs
    init(tmp_path / "at" / "repo")
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CUT = "user.power_cut"
"""The attribute of the root that is set to say when the power is cut."""

_ROOT = Path(__file__).parents[2]
_PATIENCE_SECONDS = 20.0


@contextmanager
def mounted(backing: Path, at: Path, *, subtype: str = "", forgetful: bool = False) -> Iterator[None]:
    """Show the folder `backing` at `at` inside the block; both are made if they are not there.

    Args:
        subtype: the type in mountinfo is `fuse.<subtype>`, or `fuse` if "".
        forgetful: what was not synced is lost when the power is cut (see `forgetful`).
    """
    backing.mkdir(parents=True, exist_ok=True)
    at.mkdir(parents=True, exist_ok=True)
    kind = "forgetful" if forgetful else "plain"
    command = [sys.executable, "-m", "tests.faults.fuse_server", str(backing.absolute()), str(at.absolute())]
    server = subprocess.Popen(
        [*command, subtype, kind], cwd=_ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        _wait_until_mounted(at, server)
        yield
    finally:
        _unmount(at, server)


def cut_power(at: Path, report: Path, *, seed: int, after: int = 0) -> None:
    """Cut the power of a forgetful file system before its `after`-th change or sync from now on; at once if 0.

    Args:
        report: comes to be when it is cut, outside of the mount; how many changes and syncs there were since the mount.
        seed: decides what survives of what was not synced; it then lies in the backing folder.
    """
    os.setxattr(at, CUT, json.dumps({"after": after, "seed": seed, "report": str(report)}).encode())


def _wait_until_mounted(at: Path, server: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not os.path.ismount(at):
        assert server.poll() is None, f"nothing was mounted: {server.communicate()[1]}"
        assert time.monotonic() < deadline, "nothing was mounted in time"
        time.sleep(0.002)


def _unmount(at: Path, server: "subprocess.Popen[str]") -> None:
    """Unmount whatever happens: below files that are still open too, which are of no use to anybody then."""
    if subprocess.run(["fusermount3", "-u", "--", str(at)], capture_output=True).returncode and os.path.ismount(at):
        subprocess.run(["fusermount3", "-u", "-z", "--", str(at)], check=True)
        server.kill()
    try:
        complaints = server.communicate(timeout=_PATIENCE_SECONDS)[1]
    except subprocess.TimeoutExpired:
        server.kill()
        complaints = server.communicate()[1] + "\nthe server did not end by itself"
    if complaints:
        print(complaints, file=sys.stderr)
