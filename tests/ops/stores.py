"""States as leaves, without any array library: bytes with a dtype."""

from contextlib import contextmanager
from dataclasses import dataclass

from chainstore.model.manifest import Manifest
from chainstore.model.spec import Spec
from chainstore.observe import Observer, silent
from chainstore.odb.local import LocalDatabase
from chainstore.ops.checkout import fill
from chainstore.ops.commit import write
from chainstore.state.leaf import Destination, Leaf


@dataclass
class Scratch:
    """A source that reuses one buffer, as it may: what it returned is valid until the next read."""

    data: bytes
    buffer = bytearray(64 << 10)

    @property
    def nbytes(self) -> int:
        return len(self.data)

    def read(self, start: int, stop: int) -> memoryview:
        if stop - start > len(self.buffer):
            return memoryview(self.data)[start:stop]
        self.buffer[: stop - start] = self.data[start:stop]
        return memoryview(self.buffer)[: stop - start]


def leaf(path: tuple, data: bytes, dtype: str | None = "uint8") -> Leaf:
    return Leaf(path, ["x"], Spec(dtype, (len(data),)) if dtype else None, Scratch(data))


@contextmanager
def batch_of(db: LocalDatabase):
    batch = db.batch("auto")
    try:
        yield batch
    finally:
        db.retire_batch(batch)


def store(db: LocalDatabase, leaves: list[Leaf], *, threads: int = 1, observer: Observer = silent):
    """Publish leaves and return their manifest and how many bytes they took."""
    with batch_of(db) as batch:
        found = write(batch, leaves, threads=threads, max_memory_bytes=1 << 30, observer=observer)
        db.publish(batch, [])
    return found


def load(db: LocalDatabase, manifest: Manifest, *, threads: int = 1) -> list[bytes]:
    """Return the bytes of every entry."""
    buffers = [bytearray(entry.nbytes) for entry in manifest.entries]
    destinations = [
        Destination(entry, memoryview(buffer), False) for entry, buffer in zip(manifest.entries, buffers, strict=True)
    ]
    fill(db, destinations, threads=threads, max_memory_bytes=1 << 30, observer=silent)
    return [bytes(buffer) for buffer in buffers]
