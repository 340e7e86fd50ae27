"""Content: the entries at and below one path of a commit's state, read when first asked for.

What a user asks (`Snapshot`), what is loaded into live objects (`loading`) and rows of arrays (`slices`) all stand on
this; it knows names, entries and how to build a part of the state, and nothing of how people ask.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

from chainstore.errors import PathNotFound
from chainstore.lazy.reading import Reading
from chainstore.model.commit import Commit
from chainstore.model.manifest import Manifest
from chainstore.model.paths import Attr, Path, format_path, parse_path
from chainstore.model.tree import Entry
from chainstore.refs import nearest_names
from chainstore.state import Assembly, references
from chainstore.state.leaf import Destination


class Content:
    """The part of a commit's state at and below `root`.

    Attributes:
        root: where it starts; () for the whole.
    """

    def __init__(self, commit: Commit, reading: Reading, manifest: Manifest | None, root: Path) -> None:
        self.commit, self.reading, self.root = commit, reading, root
        self._manifest = manifest

    @property
    def manifest(self) -> Manifest:
        """The entries of the whole state; read on first use."""
        if self._manifest is None:
            self._manifest = Manifest(self.reading.entries(self.commit, "state"))
        return self._manifest

    @cached_property
    def _parents(self) -> frozenset[Path]:
        """Paths of entries that have others below them, attributes apart."""
        return frozenset(e.path[:-1] for e in self.manifest.entries if e.path and type(e.path[-1]) is not Attr)

    def leaves(self) -> Iterator[Entry]:
        """Yield the entries of arrays, plain values and empty containers, in the order of the state."""
        depth = len(self.root)
        for entry in self.manifest.entries:
            if entry.path[:depth] != self.root or isinstance(entry.path[-1] if entry.path else None, Attr):
                continue
            if not self.is_container(entry):
                yield entry

    def is_container(self, entry: Entry) -> bool:
        """Whether an entry only holds others."""
        return entry.spec is None and not entry.extents and entry.path in self._parents

    def child_keys(self) -> Iterator[object]:
        """Yield the keys directly below the root."""
        depth = len(self.root)
        for entry in self.manifest.entries:
            below = len(entry.path) == depth + 1 and entry.path[:depth] == self.root
            if below and not isinstance(entry.path[-1], Attr):
                yield entry.path[-1]

    def entry(self, path: str) -> Entry:
        """Return the entry at a path below the root.

        Raises:
            PathNotFound: there is none; says what comes closest.
        """
        full = (*self.root, *parse_path(path))
        if full not in self.manifest:
            names = [format_path(entry.path) for entry in self.manifest.entries]
            raise PathNotFound(path, self.commit.short, nearest_names(path, names))
        return self.manifest[full]

    def child(self, key: object) -> Entry:
        """Return the entry at one more key.

        Raises:
            PathNotFound: there is none; says what comes closest, or what there is.
        """
        path = (*self.root, key)
        if path not in self.manifest:
            names = [str(e.path[-1]) for e in self.manifest.entries if e.path and e.path[:-1] == self.root]
            near = nearest_names(str(key), names) or names[:3]
            raise PathNotFound(format_path(path), self.commit.short, near)  # type: ignore[arg-type]
        return self.manifest[path]  # type: ignore[index]

    def needed(self, root: Path) -> Sequence[Entry]:
        """Return the entries at and below `root`, and those they refer to, in walk order."""
        if not root:
            return self.manifest.entries
        wanted = {root}
        while True:
            chosen = [e for e in self.manifest.entries if any(e.path[: len(w)] == w for w in wanted)]
            more = {target for entry in chosen for target in references(entry.node)} - wanted
            more = {target for target in more if not any(target[: len(w)] == w for w in wanted)}
            if not more:
                return chosen
            wanted |= more

    def load(self, root: Path, select: Callable[[Path], bool] | None = None, map_location: str | None = None) -> object:
        """Return what lies at `root`, or the selected part of it, as it was saved.

        Raises:
            PathNotFound: nothing matches.  IdMismatch: something of it is damaged.
        """
        entries = self.needed(root)
        assembly = Assembly(entries, root=root, select=select, map_location=map_location)
        if select is not None and not assembly.destinations and not any(select(e.path) for e in entries):
            raise PathNotFound("what select and exclude leave", self.commit.short)
        self.fill(assembly.destinations)
        return assembly.build()

    def load_array(self, path: Path) -> object:
        """Return the dense array at a full path, without a look at all the others.

        Raises:
            IdMismatch: it is damaged.
        """
        wanted, open_ = {path}, [path]
        while open_:
            found = set(references(self.manifest[open_.pop()].node)) - wanted
            wanted |= found
            open_ += found
        assembly = Assembly([self.manifest[each] for each in sorted(wanted, key=self._places.__getitem__)], root=path)
        self.fill(assembly.destinations)
        return assembly.build()

    @cached_property
    def _places(self) -> dict[Path, int]:
        """Path -> place in the walk."""
        return {entry.path: place for place, entry in enumerate(self.manifest.entries)}

    def fill(self, destinations: Sequence[Destination]) -> int:
        """Fill destinations, and return how many raw bytes had to be read for that."""
        return self.reading.fill(self.commit, destinations)
