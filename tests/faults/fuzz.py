"""Fuzzing one parser: `python -m tests.faults.fuzz PARSER --seed 1`; `--only 4711` repeats one input of it.

In a process of its own, which may have 2 GiB of address space beside the libraries that its parser loads by itself, and
dies where one input takes more than 5 s.  What it is at work on lies in a file that outlives it.
"""

import argparse
import json
import mmap
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from importlib import import_module
from pathlib import Path

ADDRESS_SPACE_BYTES = 2 << 30
LIBRARIES = {"value": "torch"}  # loaded where an input names one of its values; takes more address space than the limit
SECONDS_PER_INPUT = 5
_HEAD_BYTES = 16
_ROOM_BYTES = 16 << 20


class Flight:
    """The input at work, in a file."""

    def __init__(self, path: Path) -> None:
        with open(path, "w+b") as file:
            file.truncate(_ROOM_BYTES)
            self._memory = mmap.mmap(file.fileno(), _ROOM_BYTES)

    def note(self, number: int, data: bytes) -> None:
        self._memory[:_HEAD_BYTES] = number.to_bytes(8, "little") + len(data).to_bytes(8, "little")
        self._memory[_HEAD_BYTES : _HEAD_BYTES + len(data)] = data


def last_of(path: Path) -> tuple[int, bytes]:
    """Return number and bytes of the input that a dead process was at work on."""
    with open(path, "rb") as file:
        number, length = (int.from_bytes(file.read(8), "little") for _ in range(2))
        return number, file.read(length)


def main() -> int:
    options = _options()
    most = ADDRESS_SPACE_BYTES
    if options.parser in LIBRARIES:
        import_module(LIBRARIES[options.parser])
        most += int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        return _fuzz(options, Path(name))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.fuzz", description="Fuzz one parser.")
    parser.add_argument("parser", help="its name; `list` prints them all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of one input")
    parser.add_argument("--seconds", type=float, help="instead of the number of trials of a short run")
    parser.add_argument("--flight", type=Path, help="the file for the input at work")
    parser.add_argument("--folder", type=Path, help="where the samples are made")
    return parser.parse_args()


def _fuzz(options: argparse.Namespace, folder: Path) -> int:
    from tests.faults.parsers import PARSERS, Parser  # under the limit, as all that follows
    from tests.faults.samples import Samples

    def make(parser: Parser, number: int) -> bytes:
        if number < len(parser.samples):
            return parser.samples[number]
        source = random.Random(f"{options.seed} {options.parser} {number}")
        data = source.choice(parser.changes)(source, parser.samples)
        return parser.sign(data) if parser.sign is not None and source.random() < 0.8 else data

    if options.parser == "list":
        print(json.dumps(list(PARSERS)))
        return 0
    (folder / "made").mkdir()
    (folder / "used").mkdir()
    parser = PARSERS[options.parser](Samples(folder / "made"), folder / "used")
    flight = Flight(options.flight or folder / "flight")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # dies: C code would not return to be told
    outcomes: Counter[str] = Counter()
    numbers = range(len(parser.samples) + parser.trials) if options.seconds is None else range(1 << 62)
    end = time.monotonic() + (options.seconds or float("inf"))
    for number in numbers if options.only is None else (options.only,):
        data = make(parser, number)
        flight.note(number, data)
        signal.setitimer(signal.ITIMER_REAL, SECONDS_PER_INPUT)
        try:
            parser.parse(data)
            outcomes["read" if number >= len(parser.samples) else "samples"] += 1
        except parser.refusals as error:
            outcomes[type(error).__name__] += 1
        except BaseException:
            print(json.dumps({"number": number, "hex": data.hex(), "why": traceback.format_exc()}))
            return 1
        if options.seconds is not None and not number % 16 and time.monotonic() > end:
            break
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(json.dumps({"outcomes": outcomes}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
