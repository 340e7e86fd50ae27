"""Peak memory of a commit and a checkout above the state itself: `python -m benchmarks.engine_memory MB FOLDER`."""

import shutil
import sys
import tempfile
from pathlib import Path

import chainstore as cs
from benchmarks.engine import dense_state, fresh, peak_rss_mb, raw_bytes


def main() -> None:
    state = dense_state(int(sys.argv[1]))
    size = raw_bytes(state) / (1 << 20)
    folder = Path(tempfile.mkdtemp(dir=sys.argv[2]))
    try:
        repo = fresh(folder / "repo", "auto")
        repo.commit({"nothing": 0})
        before = peak_rss_mb()
        repo.commit(state)
        after = peak_rss_mb()
        print(f"peak RSS of a commit above the state ({size:.0f} MiB): {after - before:.0f} MiB")
        back = repo.checkout()
        print(f"peak RSS of a checkout above state and result: {peak_rss_mb() - after - size:.0f} MiB")
        del back
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    assert cs.__version__
    main()
