"""Checkout: stored chunks become bytes of live memory, verified before they count.

Whole chunks are decoded straight into their range of the destination, chunks that build on each other in one job;
chunks that small leaves share are read once and copied out.  Memory that already holds a chunk's bytes is left alone:
hashing is cheaper than reading.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from chainstore.errors import IdMismatch, Malformed
from chainstore.ids import Kind, ObjectId
from chainstore.model.paths import Path, format_path
from chainstore.observe import Observer
from chainstore.odb.folding import FOLD_BYTES, Nodes
from chainstore.odb.local import LocalDatabase
from chainstore.ops.commit import Tally
from chainstore.ops.form import SMALL_BYTES
from chainstore.ops.grouping import in_jobs
from chainstore.ops.pipeline import BYTES_PER_WORKER, run, worker_count
from chainstore.state.leaf import Destination

_NODE_BYTES = 1 << 10  # about what is held of where a record lies
Part = tuple[memoryview, int]
"""Memory, and from which offset of a chunk on its bytes belong there."""


@dataclass(slots=True)
class _Wanted:
    """One chunk to read, and where its bytes go.

    Attributes:
        path: the first that needs it.
        owners: memory of large leaves from where it begins, likely as long as the chunk; and whether that is live.
        parts: everything else.
    """

    chunk: ObjectId
    path: Path
    owners: list[tuple[memoryview, bool]] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes to be filled."""
        return sum(len(target) for target, _ in (*self.owners, *self.parts))


def fill(
    db: LocalDatabase,
    destinations: Sequence[Destination],
    *,
    threads: int,
    max_memory_bytes: int,
    observer: Observer,
) -> int:
    """Fill every destination and return how many bytes of chunks were read for that.

    Args:
        threads: workers at most; there are never more than cores.
        max_memory_bytes: for all of them together, beside the destinations.

    Raises:
        IdMismatch: a chunk is damaged; `path` says whose.  Live destinations may then be half filled.
    """
    total = sum(len(destination.buffer) for destination in destinations)
    tally = Tally("checkout", total, observer)
    wanted = _wanted(destinations)
    nodes = db.lay_out(wanted)
    lengths = {id: nodes[id].nbytes for id in wanted}
    jobs = in_jobs(nodes, wanted)
    workers = worker_count(min(threads, os.cpu_count() or 1), max_memory_bytes, total)
    if any(nodes[id].bases for id in wanted):
        workers = max(1, min(workers, max_memory_bytes // (BYTES_PER_WORKER + FOLD_BYTES)))
    room = max(0, max_memory_bytes // workers - BYTES_PER_WORKER)
    known = nodes if _NODE_BYTES * len(nodes) <= max_memory_bytes >> 4 else None
    del nodes  # of a long chain more than there are jobs

    def read(job: tuple[ObjectId, ...]) -> None:
        chunks = [wanted[id] for id in job]
        nbytes = sum(chunk.nbytes for chunk in chunks)
        try:
            tally.add(nbytes, _read(db, chunks, lengths, room, known))
        except IdMismatch as error:
            path = next(chunk.path for chunk in chunks if str(chunk.chunk) == error.id)
            raise IdMismatch(error.id, error.why, path=format_path(path), base=error.base) from error

    run(jobs, read, threads=workers)
    return tally.stored


def _read(
    db: LocalDatabase, chunks: Sequence[_Wanted], lengths: dict[ObjectId, int], room: int, known: Nodes | None
) -> int:
    """Fill the memory that wants some chunks, and return how many bytes of them were read."""
    outs: dict[ObjectId, memoryview | None] = {}
    left: list[tuple[ObjectId, list[Part]]] = []
    for chunk in chunks:
        id, out, parts = chunk.chunk, None, chunk.parts
        for target, live in chunk.owners:
            whole = len(target) == lengths[id]
            if whole and live and db.sealer.id(Kind.CHUNK, target) == id:
                continue
            if whole and out is None:
                out = target
            else:
                parts = [*parts, (target, 0)]
        if out is not None or parts:
            outs[id] = out
            left.append((id, parts))
    found = db.read_together(outs, room, known) if outs else {}
    for id, parts in left:
        data = found[id]
        for target, offset in parts:
            part = data[offset : offset + len(target)]
            if len(part) != len(target):
                raise IdMismatch(str(id), "it is shorter than what refers to it")
            target[:] = part
    return sum(len(data) for data in found.values())


def _wanted(destinations: Sequence[Destination]) -> dict[ObjectId, _Wanted]:
    """Return the chunks that destinations need, each once."""
    wanted: dict[ObjectId, _Wanted] = {}
    for destination in destinations:
        entry, start = destination.entry, 0
        if entry.nbytes != len(destination.buffer):
            raise Malformed(
                "snapshot",
                f"{format_path(entry.path)!r} has {entry.nbytes} bytes, not {len(destination.buffer)}",
            )
        own = entry.nbytes > SMALL_BYTES
        for extent in entry.extents:
            target = destination.buffer[start : start + extent.length]
            start += extent.length
            chunk = wanted.get(extent.chunk)
            if chunk is None:
                chunk = wanted[extent.chunk] = _Wanted(extent.chunk, entry.path)
            if own and not extent.offset:
                chunk.owners.append((target, destination.live))
            else:
                chunk.parts.append((target, extent.offset))
    return wanted
