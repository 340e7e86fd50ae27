"""The seam: what every object database can do, local or remote."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from chainstore.ids import Kind, ObjectId
from chainstore.model.change import Change
from chainstore.model.frame import Buffer
from chainstore.model.spec import Spec
from chainstore.odb.rows import RefRow


class Batch(Protocol):
    """Objects on their way into the store: invisible until published.  Thread-safe."""

    def append(self, kind: Kind, plain: Buffer, spec: Spec | None = None) -> "Appended":
        """Store an object unless it is known.

        Args:
            plain: its bytes; may be reused after the call.
            spec: dtype and shape for the codecs, None for bytes of no particular kind.
        """
        ...

    def close(self) -> None:
        """Let go of what was not published; gc takes its bytes."""
        ...


class Appended(Protocol):
    """What became of an object: its id, and how many bytes it took (0 where it was known)."""

    id: ObjectId
    stored: int


class ObjectDatabase(Protocol):
    """Objects by id and the refs that lead to them.

    Whatever `publish` acknowledged survives any crash; whatever it did not is all there or not at all.  No method
    returns bytes that do not hash to the id asked for.  All methods may be called from several threads.
    """

    def has(self, id: ObjectId) -> bool:
        """Whether an object is stored; a later read may still find it damaged."""
        ...

    def read(self, id: ObjectId, out: memoryview | None = None) -> memoryview:
        """Return the plain bytes of an object, verified; in `out` where it is given, exactly as long as they are.

        Raises:
            Damaged: missing, or not what was stored.
        """
        ...

    def batch(self, codec: str | None = None) -> Batch: ...

    def publish(self, batch: Batch | None, changes: Sequence[Change], *, parents: Sequence[ObjectId] = ()) -> int:
        """Make a batch and `changes` durable and visible in one step; return the number of the log line.

        Raises:
            RefConflict: a ref is not where a change expects it; nothing was published.
        """
        ...

    def refs(self) -> list[RefRow]: ...

    def scan(self) -> Iterator[ObjectId]: ...

    def close(self) -> None: ...
