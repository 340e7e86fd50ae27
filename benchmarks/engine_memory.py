"""Peak memory of a commit and a checkout above the state itself: `python -m benchmarks.engine_memory MB FOLDER`."""

import gc
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.engine import fresh
from benchmarks.measure import reset_peak, rss_mb
from benchmarks.workloads import dense_state, raw_bytes


def main() -> None:
    state = dense_state(int(sys.argv[1]))
    size = raw_bytes(state) / (1 << 20)
    folder = Path(tempfile.mkdtemp(dir=sys.argv[2]))
    try:
        repo = fresh(folder / "repo", "auto")
        repo.commit({"nothing": 0})
        gc.collect()
        before = rss_mb()
        reset_peak()
        repo.commit(state)
        print(f"peak RSS of a commit above a state of {size:.0f} MiB: {rss_mb('VmHWM') - before:.0f} MiB")
        reset_peak()
        back = repo.checkout()
        print(f"peak RSS of a checkout above what is left when it returned: {rss_mb('VmHWM') - rss_mb():.0f} MiB")
        del back
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
