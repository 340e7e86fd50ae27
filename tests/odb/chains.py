"""Records with bases, made by hand: lines of differences, and predictions from several bases that count decodes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from random import Random

import numpy as np

from chainstore.codecs import chain
from chainstore.codecs.base import Against
from chainstore.codecs.chain import Encoder
from chainstore.errors import Malformed
from chainstore.ids import Kind, ObjectId
from chainstore.model.frame import Header
from chainstore.model.spec import Spec
from chainstore.odb.local import LocalDatabase
from chainstore.odb.record import Sealer
from tests.odb.stores import put

TAG = 210
FLOATS = Spec("float32", ())


class Sum:
    """What a chunk has more than all of its bases together, bit by bit; keeps count of what it decodes."""

    tag, bases = TAG, 4

    def __init__(self) -> None:
        self.decoded: list[bytes] = []

    def encode(self, data, spec, bases, hint, out) -> int:
        out[: len(data)] = combined(data, *bases)
        return len(data)

    def decode(self, payload, spec, bases, out) -> None:
        if not bases or any(len(base) != len(out) for base in (payload, *bases)):
            raise Malformed("sum", "lengths differ")
        out[:] = combined(payload, *bases)
        self.decoded.append(bytes(out))


def combined(*parts) -> bytes:
    """Return the exclusive or of equally long bytes."""
    return np.bitwise_xor.reduce([np.frombuffer(part, np.uint8) for part in parts]).tobytes()


@contextmanager
def counting() -> Iterator[list[bytes]]:
    """Make `Sum` known, and give the list of everything that is decoded with it meanwhile."""
    codec = Sum()
    chain.register(TAG, lambda effort: codec, delta=True)
    try:
        yield codec.decoded
    finally:
        chain.unregister(TAG)


def id_of(db: LocalDatabase, plain: bytes) -> ObjectId:
    return db.sealer.id(Kind.CHUNK, plain)


def sealed(sealer: Sealer, plain: bytes, coded: bytes, tags: bytes, bases: Sequence[bytes], depth: int):
    """Return a record, as `append_record` takes it."""
    ids = tuple(sealer.id(Kind.CHUNK, base) for base in bases)
    room = bytearray(sealer.sealed_bytes(len(coded)))
    id = sealer.id(Kind.CHUNK, plain)
    header, payload = sealer.seal(Kind.CHUNK, id, len(plain), tags, coded, room, depth=depth, bases=ids)
    return header, bytes(payload)


def summed(sealer: Sealer, plain: bytes, bases: Sequence[bytes], depth: int) -> tuple[Header, bytes]:
    """Return a record of `plain` that builds on `bases`."""
    return sealed(sealer, plain, combined(plain, *bases), bytes([TAG, 0, 0, 0]), bases, depth)


def differing(sealer: Sealer, plain: bytes, base: bytes, depth: int, tag: int) -> tuple[Header, bytes]:
    """Return a record of float32 `plain` as a codec of ours makes it against one base."""
    coded = Encoder("auto").encode(memoryview(plain), FLOATS, [Against(tag, (memoryview(base),))])
    assert coded.against is not None
    return sealed(sealer, plain, bytes(coded.payload), coded.tags, [base], depth)


def put_records(db: LocalDatabase, *records: tuple[Header, bytes]) -> None:
    batch = db.batch("none")
    try:
        for record in records:
            batch.append_record(*record)
        db.publish(batch, [])
    finally:
        db.retire_batch(batch)


def line(db: LocalDatabase, tag: int, depth: int, nbytes: int, seed: int = 1) -> list[bytes]:
    """Store a line of slowly moving floats, each a difference to the one before, and return them."""
    versions, source = [np.random.default_rng(seed).normal(size=nbytes // 4).astype("<f4")], np.random.default_rng(2)
    for _ in range(depth):
        moved = source.random(nbytes // 4) < 0.9
        versions.append((versions[-1] * (1 + 1e-4 * moved)).astype("<f4"))
    plains = [version.tobytes() for version in versions]
    put(db, plains[0])
    pairs = enumerate(pairwise(plains), 1)
    put_records(db, *(differing(db.sealer, plain, base, number, tag) for number, (base, plain) in pairs))
    return plains


Slot = tuple[bytes, bytes, bytes]


def slots(seed: int, commits: int, nbytes: int) -> list[Slot]:
    """Return (weight, first moment, second moment) of one slot at each commit."""
    source = Random(seed)
    return [(source.randbytes(nbytes), source.randbytes(nbytes), source.randbytes(nbytes)) for _ in range(commits)]


def predicted(sealer: Sealer, history: Sequence[Slot]) -> list[tuple[Header, bytes]]:
    """Return records of everything after the first commit: m' on m; v' on v, m, m'; w' on w, m', v'."""
    records = []
    for number, (before, after) in enumerate(pairwise(history), 1):
        (w, m, v), (w_, m_, v_) = before, after
        records.append(summed(sealer, m_, [m], number))
        records.append(summed(sealer, v_, [v, m, m_], number + 1))
        records.append(summed(sealer, w_, [w, m_, v_], number + 2))
    return records


def put_slots(db: LocalDatabase, *histories: Sequence[Slot]) -> None:
    put(db, *(part for history in histories for part in history[0]))
    put_records(db, *(record for history in histories for record in predicted(db.sealer, history)))
