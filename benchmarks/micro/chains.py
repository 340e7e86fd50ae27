"""How long a state takes to restore whose chunks are differences: `python -m benchmarks.micro.chains [--mb 200]`.

Makes an encrypted store of nine versions of an array, each chunk a difference to the one before, and restores versions
0, 1, 4 and 8, in turns.  Prints medians and their ratio to depth 0 (the target is 2 at depth 8), that ratio of the
least processor time, bytes stored for each version next to the first, and the peak of memory above the array.  `bf16`
stands for late fine-tuning (3 % of the values move by one bit at each step), `fp32` for dense training, where every
value moves.

With --cold DIR the packs lie there and are dropped from the page cache before each turn.

With --recorded NAME ... the arrays are those of the first nine states of recorded runs (`benchmarks.traces`, small
sizes), large ones of like names side by side; what a difference would not make smaller is whole.

`bare` is what reading, decrypting and decompressing alone take of one processor, next to all of depth 0: less than that
no restore can take, however differences are undone.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import torch

from benchmarks.measure import reset_peak, rss_mb
from benchmarks.recorded import Player
from benchmarks.traces import CHAINS
from chainstore.codecs.base import DIFFERENCE, XOR, Against
from chainstore.codecs.chain import Encoder
from chainstore.codecs.zstd import Frames
from chainstore.crypto.bundle import new_bundle
from chainstore.ids import Kind, ObjectId
from chainstore.model.spec import Spec
from chainstore.model.tree import Entry, Extent
from chainstore.observe import silent
from chainstore.odb.layout import Format, Layout
from chainstore.odb.local import LocalDatabase
from chainstore.odb.opening import create_local, open_local
from chainstore.odb.record import SUITE_V1, Sealer
from chainstore.odb.surroundings import Surroundings
from chainstore.ops.checkout import fill
from chainstore.state.leaf import Destination
from chainstore.storage.pack import PackDir

CHUNK = 1 << 20
DEPTHS = (0, 1, 4, 8)
KINDS = {"bf16": Spec("bfloat16", ()), "fp32": Spec("float32", ())}
SMALL = 64 << 10  # bytes of a recorded array that is left out
TAGS = {"xor": XOR, "difference": DIFFERENCE}


def versions(kind: str, chunk: int) -> Iterator[bytes]:
    """Yield the bytes of a chunk at each step."""
    source = np.random.default_rng(chunk)
    count = CHUNK // KINDS[kind].itemsize
    weights = source.normal(scale=0.02, size=count).astype("<f4")
    halves = (weights.view("<u4") >> 16).astype("<u2")
    for _ in range(max(DEPTHS) + 1):
        yield (weights if kind == "fp32" else halves).tobytes()
        weights = weights + (1e-4 * source.normal(size=count)).astype("<f4")
        halves = halves + (source.random(count) < 0.03).astype("<u2")


def recorded(name: str, folder: Path) -> tuple[Spec, list[list[bytes]]]:
    """Record a run and return what its arrays are, and of each chunk the bytes at each step."""
    chain = CHAINS[name]
    states = {**chain.states, "default": max(DEPTHS) + 1}
    player = Player(replace(chain, states=states).record("default", folder / name))
    dtype, steps = "", []
    for number in range(max(DEPTHS) + 1):
        found: dict[str, list[bytes]] = {}
        for path, tensor in _tensors(player.state(number)):
            if tensor.nbytes >= SMALL and tensor.is_floating_point():
                dtype = str(tensor.dtype).removeprefix("torch.")
                found.setdefault(path, []).append(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        steps.append(b"".join(part for _, parts in sorted(found.items()) for part in parts))
    player.close()
    cuts = range(0, len(steps[0]), CHUNK)
    return Spec(dtype, ()), [[step[cut : cut + CHUNK] for step in steps] for cut in cuts]


def _tensors(value: object, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor of a state with its last name."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, str(key).rpartition(".")[2])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item, name)


class Versions:
    """A store of all versions of an array, and where their chunks are.

    Args:
        plains: of each chunk the bytes at each step.
    """

    def __init__(self, root: Path, spec: Spec, tag: int, plains: list[list[bytes]]) -> None:
        random = Random(7).randbytes
        self.format = Format(b"benchmark of 16b", SUITE_V1)
        self.sealer = Sealer(self.format.repo_id, new_bundle(random), random)
        self.around = Surroundings(lambda: time.time_ns() // 1000, os.urandom, "here", "benchmark")
        self.layout = Layout(root)
        self.spec = spec
        self.extents: list[list[Extent]] = [[] for _ in range(max(DEPTHS) + 1)]
        self.stored = [0] * len(self.extents)
        self.depths: dict[ObjectId, int] = {}
        self.layout.create()
        there = self.layout, self.format, self.sealer, 0, self.around
        create_local(*there, head="heads/main", config={}).close()
        self.layout.write_format(self.format)
        # version by version, as commits leave them
        encoder = Encoder("auto")
        with closing(self.open()) as db:
            for depth in range(len(self.extents)):
                batch = db.batch()
                for plain in plains:
                    base = plain[depth - 1] if depth else b""
                    self._append(batch, encoder, plain[depth], base, tag, depth)
                db.publish(batch, [])
                batch.close()

    def open(self) -> LocalDatabase:
        return open_local(self.layout, self.format, self.sealer, 0, self.around, readonly=False)

    def _append(self, batch, encoder: Encoder, plain: bytes, base: bytes, tag: int, depth: int) -> None:  # type: ignore[no-untyped-def]
        id, below = self.sealer.id(Kind.CHUNK, plain), self.sealer.id(Kind.CHUNK, base)
        self.extents[depth].append(Extent(id, 0, len(plain)))
        against = [Against(tag, (memoryview(base),))] if depth else []
        if id in self.depths:
            return  # as it was, or was before
        coded = encoder.encode(memoryview(plain), self.spec, against)
        room = bytearray(self.sealer.sealed_bytes(len(coded.payload)))
        bases = (below,) if coded.against else ()  # what a difference does not make smaller is whole
        deep = self.depths[id] = self.depths[below] + 1 if bases else 0
        record = self.sealer.seal(Kind.CHUNK, id, len(plain), coded.tags, coded.payload, room, depth=deep, bases=bases)
        self.stored[depth] += batch.append_record(*record).stored


def drop(folder: Path) -> None:
    """Take the packs out of the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


@contextmanager
def clocked(*methods: tuple[type, str]) -> Iterator[list[float]]:
    """Give the processor seconds of every call of some methods meanwhile."""
    seconds: list[float] = []

    def wrap(method: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            started = time.thread_time()
            result = method(*arguments)
            seconds.append(time.thread_time() - started)
            return result

        return call

    kept = [(home, name, getattr(home, name)) for home, name in methods]
    for home, name, method in kept:
        setattr(home, name, wrap(method))
    try:
        yield seconds
    finally:
        for home, name, method in kept:
            setattr(home, name, method)


def measure(store: Versions, repeats: int, threads: int, cold: bool) -> None:
    """Print one line: restoring at each depth, in turns."""
    nbytes = sum(extent.length for extent in store.extents[0])
    array = np.full(nbytes, 1, np.uint8)  # touched, so that its pages are not taken for ours
    seconds: dict[int, list[float]] = {depth: [] for depth in DEPTHS}
    busy: dict[int, list[float]] = {depth: [] for depth in DEPTHS}
    peaks: dict[int, float] = {}
    bare: dict[int, float] = {}
    with closing(store.open()) as db:

        def restore(entry: Entry) -> None:
            places = [Destination(entry, memoryview(array), False)]
            fill(db, places, threads=threads, max_memory_bytes=256 << 20, observer=silent)

        for _ in range(repeats):
            for depth in DEPTHS:
                entry = Entry(("w",), ["x"], store.spec, tuple(store.extents[depth]))
                if cold:
                    drop(store.layout.packs)
                before = rss_mb()
                reset_peak()
                started, used = time.perf_counter(), time.process_time()
                restore(entry)
                seconds[depth].append(time.perf_counter() - started)
                busy[depth].append(time.process_time() - used)
                peaks[depth] = max(peaks.get(depth, 0.0), rss_mb("VmHWM") - before)
                with clocked((PackDir, "read_into"), (Sealer, "open"), (Frames, "read")) as taken:
                    restore(entry)
                bare[depth] = min(bare.get(depth, sum(taken)), sum(taken))
    first, least = statistics.median(seconds[0]), min(busy[0])
    for depth in DEPTHS:
        median = statistics.median(seconds[depth])
        size, work = store.stored[depth] / store.stored[0], min(busy[depth]) / least
        print(
            f"    depth {depth}: {median:6.3f} s {nbytes / median / 1e9:5.2f} GB/s   {median / first:5.2f}x depth 0,"
            f" processor {work:5.2f}x, bare {bare[depth] / least:5.2f}x   stored {size:5.3f} of depth 0"
            f"   peak {peaks[depth]:4.0f} MiB",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--cold", type=Path, help="a folder on a disk; without it everything is on /dev/shm")
    parser.add_argument("--recorded", nargs="+", choices=CHAINS, metavar="RUN", help=f"of {', '.join(CHAINS)}")
    parser.add_argument("--only", default="", help="run only kinds and codecs whose names hold this")
    options = parser.parse_args()
    chunks = options.mb * 1_000_000 // CHUNK
    with tempfile.TemporaryDirectory(dir=options.cold or "/dev/shm") as folder:
        for kind in options.recorded or KINDS:
            made = KINDS.get(kind)
            plains = [list(versions(kind, chunk)) for chunk in range(chunks)] if made else []
            spec, plains = (made, plains) if made else recorded(kind, Path(folder) / "trace")
            for name, tag in TAGS.items():
                if options.only not in f"{kind} {name}":
                    continue
                with tempfile.TemporaryDirectory(dir=folder) as place:
                    store = Versions(Path(place), spec, tag, plains)
                    print(f"{kind} {name}, {options.threads} threads, {'cold' if options.cold else 'warm'}")
                    measure(store, options.repeats, options.threads, options.cold is not None)


if __name__ == "__main__":
    main()
