"""What one piece of work costs: wall time, processor time, and memory at its peak."""

import ctypes
import gc
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a job took.

    Attributes:
        seconds: wall time.
        cpu_seconds: user and system time of all threads of this process, and of children that ended.
        peak_bytes: resident memory at its highest, above what there was when the job began.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int


def rss_mb(field: str = "VmRSS") -> float:
    """Return resident memory in MiB: now ("VmRSS") or at its peak since `reset_peak` ("VmHWM")."""
    return int(STATUS.read_text().split(f"{field}:")[1].split()[0]) / 1024


def reset_peak() -> None:
    """Let the kernel measure the peak of resident memory from here on."""
    CLEAR.write_text("5")


def settle_disk() -> None:
    """Let the disk finish, so that a job does not pay for what the one before it left to write."""
    os.sync()


def measure(job: Callable[[], object]) -> tuple[object, Cost]:
    """Run `job` once, with no freed memory lying about, and return what it returned and what it cost."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    reset_peak()
    resident, cpu = rss_mb(), cpu_seconds()
    started = time.perf_counter()
    result = job()
    seconds = time.perf_counter() - started
    peak = max(0.0, rss_mb("VmHWM") - resident)
    return result, Cost(seconds, cpu_seconds() - cpu, int(peak * (1 << 20)))


def disk_bytes(folder: Path) -> int:
    """Return what a folder takes on disk, in whole blocks."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def cpu_seconds() -> float:
    """Return the processor seconds of all threads so far, and of the processes it started that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
