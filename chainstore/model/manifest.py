"""The manifest: a snapshot flattened in memory, from path to entry, in the order of the walk.

manifest = Manifest(entries)
manifest[("model", "weight")].extents
"""

from collections.abc import Iterable, Iterator, Mapping

from chainstore.errors import Malformed
from chainstore.ids import ObjectId
from chainstore.model.paths import Path, encode_key
from chainstore.model.tree import Entry
from chainstore.model.wire import encode


class Manifest(Mapping[Path, Entry]):
    """Entries by path; iteration follows the walk.

    Two paths that Python holds equal ((1,), (True,), (1.0,)) are different here.

    Raises:
        Malformed: a path stands in it twice.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries = tuple(entries)
        self._by_name = {_name(entry.path): entry for entry in self.entries}
        if len(self._by_name) != len(self.entries):
            raise Malformed("manifest", "a path stands in it twice")

    def __getitem__(self, path: Path) -> Entry:
        return self._by_name[_name(path)]

    def __iter__(self) -> Iterator[Path]:
        return (entry.path for entry in self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, path: object) -> bool:
        return isinstance(path, tuple) and _name(path) in self._by_name

    def chunks(self) -> frozenset[ObjectId]:
        """Return the id of every chunk that this snapshot needs."""
        return frozenset(extent.chunk for entry in self.entries for extent in entry.extents)

    def raw_bytes(self) -> int:
        """Return the bytes of all arrays, values and files as they were in memory."""
        return sum(entry.nbytes for entry in self.entries)


def _name(path: Path) -> bytes:
    return encode([encode_key(key) for key in path])
