"""Work in a large repository, in a process that does nothing else, so that its memory can be told.

python -m tests.faults.scale build  PATH KEY COMMITS ARRAYS CHANGED
python -m tests.faults.scale verify PATH KEY                          prints the peak of resident bytes
python -m tests.faults.scale gc     PATH KEY
"""

import re
import sys
from pathlib import Path

import numpy as np

from chainstore.crypto.keys import KeyFile
from chainstore.ops import form as form_module
from chainstore.repository import init
from chainstore.repository import open as open_repository

ARRAY_BYTES = 256  # so that what is counted is objects and not bytes


def build(path: Path, key: KeyFile, commits: int, arrays: int, changed: int) -> None:
    """Make a repository in which every array is an object, and the first `changed` of them are new in each commit."""
    form_module.SMALL_BYTES = 0  # or small arrays would share chunks; how they are cut is the writer's business
    source = np.random.default_rng(1)
    state = {f"layer.{number:03d}": source.bytes(ARRAY_BYTES) for number in range(arrays)}
    held = {name: np.frombuffer(data, np.uint8) for name, data in state.items()}
    with init(path, key=key, codec="none", threads=1) as repo:
        for step in range(commits):
            for name in list(held)[:changed]:
                held[name] = np.frombuffer(source.bytes(ARRAY_BYTES), np.uint8)
            repo.commit(held, step=step)


def main() -> None:
    verb, path, key = sys.argv[1], Path(sys.argv[2]), KeyFile(Path(sys.argv[3]))
    if verb == "build":
        build(path, key, *map(int, sys.argv[4:]))
        return
    with open_repository(path, key=key) as repo:
        if verb == "verify":
            report = repo.verify("links")
            assert report.ok, report.damaged
        else:
            report = repo.gc()
            assert not report.left, report.left
    print(peak_bytes())


def peak_bytes() -> int:
    """Return the most memory this program had resident; ru_maxrss would count that of whoever started it, too."""
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s+([0-9]+) kB", status)[0]) * 1024


if __name__ == "__main__":
    main()
