"""The form of a state: what a commit makes of names, layouts and sizes alone, so that the next one need not.

Training changes the bytes of a state at every step and its form hardly ever.  Which leaves share a chunk, where pages
of names are cut, and the names themselves follow from the form; so does, entry by entry and page by page, everything
that a commit would write the same way again.  A form concludes nothing about bytes: each chunk is hashed anew, and
a page that is named again is one that the batch found to be stored.

Large arrays are cut into chunks of about 1 MiB of their own.  Small ones and plain values share chunks of a few
KiB, cut by the hash of their paths, so that one that is added or grows moves no other; values that change at every
step (counters) share with each other and not with weights.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from chainstore.model.frame import crc32c
from chainstore.model.manifest import Manifest
from chainstore.model.paths import Path, encode_key
from chainstore.model.spec import Spec
from chainstore.model.tree import Entry, Extent, Pages
from chainstore.model.wire import encode
from chainstore.state.walked import Walked

SMALL_BYTES = 16 << 10  # leaves up to this share chunks
SHARED_BYTES = 8 << 10  # expected size of a shared chunk
SHARED_LIMIT = 64 << 10
_TINY_BYTES = 64  # counters and scalars

Use = tuple[int, int, int, int]
"""Where bytes of a chunk stand: number of the leaf, which of its chunks it is, offset in the chunk, length."""


@dataclass(frozen=True, slots=True)
class Shared:
    """A chunk that small leaves share."""

    spec: Spec | None
    uses: tuple[Use, ...]
    nbytes: int


class Form:
    """The form of some leaves, and what the last commit of such leaves wrote.

    Args:
        walked: what `leaves` are.

    Attributes:
        parts: in the order in which they are stored: a chunk that leaves share, or the number of a leaf that has chunks
            of its own.
        entries: what the last commit made of each leaf; without extents at first.
        pages: the pages of its tree.
    """

    def __init__(self, walked: Walked) -> None:
        self.walked = walked
        self.parts = tuple(_parts(walked))
        self.entries = [Entry(path, node, spec, ()) for path, node, spec in zip(*walked.names, strict=True)]
        self.pages = Pages()
        self._manifest: Manifest | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all leaves."""
        return sum(size for size in self.walked.sizes if size > 0)

    @property
    def has_large_arrays(self) -> bool:
        """Whether any array has chunks of its own; only those can be predicted from others."""
        return any(isinstance(part, int) and self.walked.specs[part] is not None for part in self.parts)

    def entry(self, number: int, extents: tuple[Extent, ...]) -> Entry:
        """Return the entry of a leaf whose bytes are there."""
        was = self.entries[number]
        return Entry(was.path, was.node, was.spec, extents)

    def settle(self, entries: list[Entry]) -> Manifest:
        """Take note of what was made of the leaves, and return it as a manifest."""
        if self._manifest is None:
            self._manifest = Manifest(entries)
        else:
            self._manifest = self._manifest.with_entries(entries)
        self.entries = entries
        return self._manifest


@dataclass(slots=True)
class _Open:
    """A chunk that small leaves are being put into."""

    spec: Spec | None
    uses: list[Use] = field(default_factory=list)
    nbytes: int = 0

    def add(self, leaf: int, nbytes: int) -> None:
        self.uses.append((leaf, 0, self.nbytes, nbytes))
        self.nbytes += nbytes

    def close(self) -> Shared:
        return Shared(self.spec, tuple(self.uses), self.nbytes)


def _parts(walked: Walked) -> Iterator[Shared | int]:
    open_ones: dict[str, _Open] = {}
    for number, (path, spec, size) in enumerate(zip(walked.paths, walked.specs, walked.sizes, strict=True)):
        if size <= 0:
            continue
        if size > SMALL_BYTES:
            yield number
            continue
        stream = _stream(spec, size)
        shared = open_ones.get(stream)
        if shared is None:
            shared = open_ones[stream] = _Open(_stream_spec(spec, stream))
        shared.add(number, size)
        if shared.nbytes >= SHARED_LIMIT or _ends_shared(path, size):
            yield open_ones.pop(stream).close()
    for shared in open_ones.values():
        yield shared.close()


def _stream(spec: Spec | None, size: int) -> str:
    if spec is None:
        return "values"
    return "tiny" if size <= _TINY_BYTES else spec.dtype


def _stream_spec(spec: Spec | None, stream: str) -> Spec | None:
    return None if spec is None or stream == "tiny" else Spec(spec.dtype, ())


def _ends_shared(path: Path, nbytes: int) -> bool:
    plain = all(type(key) is str or type(key) is int for key in path)  # not True, which equals 1 and is another key
    return (_name_hash if plain else _hash_name)(path) % SHARED_BYTES < max(nbytes, _TINY_BYTES)


def _hash_name(path: Path) -> int:
    return crc32c(b"shared", encode([encode_key(key) for key in path]))


_name_hash = lru_cache(maxsize=1 << 16)(_hash_name)
