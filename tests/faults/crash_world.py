"""The world of simulated power cuts: small, the same every time, and quick to look at."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from random import Random

from chainstore import config
from chainstore.ops import gc, moving, reclaim
from chainstore.storage import log, pack
from chainstore.storage.index import Index

# a pack is full after two or three commits; every line of the log opens a segment
SMALL_FILES = (
    (log, "SEGMENT_BYTES", 1),
    (pack, "PACK_BYTES", 40_000),
    (moving, "PACK_BYTES", 40_000),
    (pack, "CROWDED_BYTES", 10_000),
)
# little is worth a hole or a move, and takes several publications
SMALL_GC = (
    (reclaim, "PUNCH_BYTES", 4096),
    (moving, "_SMALL_BYTES", 1),
    (gc, "_ROWS", 3),
    (gc, "_BREATH_SECONDS", 0.0),
    (moving, "_BATCH_RECORDS", 2),
)


@contextmanager
def fixed_world(seed: int, day: int) -> Iterator[None]:
    """Let clock and random bytes depend on nothing but `seed` and `day` inside the block."""
    source, seconds = Random(f"{seed} {day}"), count(day * 86_400)
    now, urandom = config.now, os.urandom
    config.now = lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=next(seconds))
    os.urandom = source.randbytes  # type: ignore[assignment]
    try:
        yield
    finally:
        config.now, os.urandom = now, urandom


@contextmanager
def walked_once() -> Iterator[None]:
    """Walk each index file once: most states share theirs, and the same bytes have the same faults."""
    walk = Index.verify_file
    known: dict[bytes, list[str]] = {}

    def look_up(path: Path) -> list[str]:
        data = (path / "data.mdb").read_bytes()
        if data not in known:
            known[data] = walk(path)
        return known[data]

    Index.verify_file = staticmethod(look_up)  # type: ignore[method-assign]
    try:
        yield
    finally:
        Index.verify_file = staticmethod(walk)  # type: ignore[method-assign]


@contextmanager
def small_world(small_files: bool) -> Iterator[None]:
    """Let little be much for gc inside the block, and for `small_files` also for packs and the log."""
    with ExitStack() as back:
        for module, name, value in (*SMALL_GC, *(SMALL_FILES if small_files else ())):
            back.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, value)
        yield
