"""Checkout: stored chunks become bytes of live memory, verified before they count.

Whole chunks are decoded straight into their range of the destination; chunks that small leaves share are read once
and copied out.  Memory that already holds a chunk's bytes is left alone: hashing is cheaper than reading.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from chainstore.errors import IdMismatch, Malformed
from chainstore.ids import Kind, ObjectId
from chainstore.model.paths import Path, format_path
from chainstore.observe import Observer
from chainstore.odb.local import LocalDatabase
from chainstore.ops.commit import SMALL_BYTES, Tally
from chainstore.ops.pipeline import run, worker_count
from chainstore.state.leaf import Destination


@dataclass(frozen=True, slots=True)
class _Job:
    """One chunk to read, where its bytes go (slice, offset in the chunk), whether it is likely one whole."""

    chunk: ObjectId
    path: Path
    targets: tuple[tuple[memoryview, int], ...]
    whole: bool
    live: bool


def fill(
    db: LocalDatabase,
    destinations: Sequence[Destination],
    *,
    threads: int,
    max_memory_bytes: int,
    observer: Observer,
) -> int:
    """Fill every destination and return how many bytes of chunks were read for that.

    Raises:
        IdMismatch: a chunk is damaged; `path` says whose.  Live destinations may then be half filled.
    """
    total = sum(len(destination.buffer) for destination in destinations)
    tally = Tally("checkout", total, observer)

    def read(job: _Job) -> None:
        nbytes = sum(len(target) for target, _ in job.targets)
        try:
            tally.add(nbytes, _read(db, job))
        except IdMismatch as error:
            raise IdMismatch(error.id, error.why, path=format_path(job.path)) from error

    run(_jobs(destinations), read, threads=worker_count(threads, max_memory_bytes, total))
    return tally.stored


def _read(db: LocalDatabase, job: _Job) -> int:
    if job.whole and db.length(job.chunk) == len(job.targets[0][0]):
        target = job.targets[0][0]
        if job.live and db.sealer.id(Kind.CHUNK, target) == job.chunk:
            return 0
        db.read(job.chunk, target)
        return len(target)
    data = db.read(job.chunk)
    for target, offset in job.targets:
        part = data[offset : offset + len(target)]
        if len(part) != len(target):
            raise IdMismatch(str(job.chunk), "it is shorter than what refers to it")
        target[:] = part
    return len(data)


def _jobs(destinations: Sequence[Destination]) -> list[_Job]:
    jobs = []
    shared: defaultdict[ObjectId, list[tuple[memoryview, int]]] = defaultdict(list)
    paths: dict[ObjectId, Path] = {}
    for destination in destinations:
        start = 0
        if destination.entry.nbytes != len(destination.buffer):
            raise Malformed(
                "snapshot",
                f"{format_path(destination.entry.path)!r} has {destination.entry.nbytes} bytes, not "
                f"{len(destination.buffer)}",
            )
        own = destination.entry.nbytes > SMALL_BYTES
        for extent in destination.entry.extents:
            target = destination.buffer[start : start + extent.length]
            start += extent.length
            if own and extent.offset == 0:
                jobs.append(_Job(extent.chunk, destination.entry.path, ((target, 0),), True, destination.live))
            else:
                shared[extent.chunk].append((target, extent.offset))
                paths.setdefault(extent.chunk, destination.entry.path)
    jobs += [_Job(chunk, paths[chunk], tuple(uses), False, False) for chunk, uses in shared.items()]
    return jobs
