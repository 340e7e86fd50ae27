"""The manifest: a snapshot flattened in memory, from path to entry, in the order of the walk.

manifest = Manifest(entries)
manifest[("model", "weight")].extents
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from chainstore.errors import Malformed
from chainstore.ids import ObjectId
from chainstore.model.paths import Path, encode_key
from chainstore.model.tree import Entry
from chainstore.model.wire import encode

_PLAIN: Final = frozenset({str, int})  # not bool or float: True, 1.0 and 1 are equal, and different keys


class Manifest(Mapping[Path, Entry]):
    """Entries by path; iteration follows the walk.

    Two paths that Python holds equal ((1,), (True,), (1.0,)) are different here.

    Raises:
        Malformed: a path stands in it twice.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries = tuple(entries)
        self._places = {_name(entry.path): place for place, entry in enumerate(self.entries)}
        self._chunks: frozenset[ObjectId] | None = None
        if len(self._places) != len(self.entries):
            raise Malformed("manifest", "a path stands in it twice")

    def with_entries(self, entries: Iterable[Entry]) -> "Manifest":
        """Return a manifest of other entries under the same paths in the same order, which is not looked at again."""
        other = Manifest()
        other.entries, other._places = tuple(entries), self._places
        return other

    def __getitem__(self, path: Path) -> Entry:
        return self.entries[self._places[_name(path)]]

    def __iter__(self) -> Iterator[Path]:
        return (entry.path for entry in self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, path: object) -> bool:
        return isinstance(path, tuple) and _name(path) in self._places

    def chunks(self) -> frozenset[ObjectId]:
        """Return the id of every chunk that this snapshot needs."""
        if self._chunks is None:
            self._chunks = frozenset([extent.chunk for entry in self.entries for extent in entry.extents])
        return self._chunks

    def raw_bytes(self) -> int:
        """Return the bytes of all arrays, values and files as they were in memory."""
        return sum(entry.nbytes for entry in self.entries)


def _name(path: Path) -> Path | bytes:
    """Return what stands for a path among others: itself where Python tells its keys apart, else its encoding."""
    return path if _PLAIN.issuperset(map(type, path)) else encode([encode_key(key) for key in path])
