"""What some trials need of the machine: skipped by name where it is missing, an error where CI is set.

@needs_fuse
def test_...
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from ctypes.util import find_library
from functools import cache, wraps
from importlib.util import find_spec
from typing import Any

import pytest

Test = Callable[..., Any]


def needs_fuse(test: Test) -> Test:
    """Run a test only where a FUSE file system can be mounted."""
    return _needs(_missing_for_fuse(), test)


def needs_strace(test: Test) -> Test:
    """Run a test only where strace can trace a child."""
    return _needs(_missing_for_strace(), test)


def needs_root_loop(test: Test) -> Test:
    """Run a test only where file systems, on loop devices and in memory, can be made and mounted."""
    return _needs(_missing_for_mounts(), test)


def _needs(missing: str, test: Test) -> Test:
    if not missing:
        return test

    @pytest.mark.skipif(not os.environ.get("CI"), reason=f"{missing} is missing")
    @wraps(test)
    def tell(*_: object, **__: object) -> None:
        pytest.fail(f"{missing} is missing, and CI is set")

    return tell


@cache
def _missing_for_fuse() -> str:
    if find_spec("mfusepy") is None:
        return "mfusepy"
    if find_library("fuse3") is None or shutil.which("fusermount3") is None:
        return "fuse3"
    return "" if os.access("/dev/fuse", os.R_OK | os.W_OK) else "/dev/fuse"


@cache
def _missing_for_strace() -> str:
    if shutil.which("strace") is None:
        return "strace"
    traced = subprocess.run(["strace", "-f", "-o", os.devnull, "true"], capture_output=True)
    return "" if traced.returncode == 0 else "permission to trace a process"


@cache
def _missing_for_mounts() -> str:
    if missing := [tool for tool in ("mount", "umount", "losetup", "mkfs.ext4") if shutil.which(tool) is None]:
        return " and ".join(missing)
    if os.geteuid() != 0:
        return "root"
    with tempfile.TemporaryDirectory() as folder:
        if subprocess.run(["mount", "-t", "tmpfs", "none", folder], capture_output=True).returncode:
            return "permission to mount"
        subprocess.run(["umount", folder], check=True)
    free = subprocess.run(["losetup", "-f"], capture_output=True)
    return "" if free.returncode == 0 else "a free loop device"
