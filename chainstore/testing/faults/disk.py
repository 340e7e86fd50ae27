"""The disk: what a sequence of operations did, as programs see it and as a power cut would find it.

Strict POSIX, because that is all a program may rely on: what was written to a file is durable once `fdatasync`
returned, a name (made, moved or removed) once its directory was synced; before that, either may be there or not, in
any combination.  A rename is atomic.  A commit of the index is one operation that is durable at once: LMDB syncs for
itself, and is tested elsewhere.

Files are followed by name, not by descriptor: what is written through a descriptor after its file got another name
or lost it is not seen.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random

from chainstore.testing.faults.operations import Operation, after
from chainstore.testing.faults.trees import EMPTY, Content, Tree, parent

PAGE_BYTES = 4096  # what a kernel writes back as one
SECTOR_BYTES = 512  # what a disk writes as one
_EDGES = 4


@dataclass(slots=True)
class _File:
    """A file with or without a name: its content now, and what is certain to survive."""

    now: Content
    kept: Content


@dataclass(frozen=True, slots=True)
class _Renaming:
    """A change of names that no `sync_dir` has made durable yet.

    Attributes:
        path: what changes; in its folder.  file: what it names from now on; None: nothing.
        source: the name that goes with it; "" if none.
        folder: whether it is a folder that was made.
    """

    path: str
    file: int | None = None
    source: str = ""
    folder: bool = False

    def apply(self, names: dict[str, int], folders: set[str]) -> None:
        if self.folder:
            folders.add(self.path)
        elif self.file is None:
            names.pop(self.path, None)
        else:
            if self.source:
                names.pop(self.source, None)
            names[self.path] = self.file


@dataclass
class Disk:
    """What is on a disk and what only memory holds; `apply` changes it, `copy` takes it down."""

    names: dict[str, int] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    _files: dict[int, _File] = field(default_factory=dict)
    _kept_names: dict[str, int] = field(default_factory=dict)
    _kept_folders: set[str] = field(default_factory=set)
    _pending: list[_Renaming] = field(default_factory=list)

    @classmethod
    def of(cls, tree: Tree) -> "Disk":
        """Return a disk on which all of a tree is durable."""
        names = {path: number for number, path in enumerate(tree.files)}
        files = {number: _File(tree.files[path], tree.files[path]) for path, number in names.items()}
        return cls(names, set(tree.folders), files, dict(names), set(tree.folders))

    def copy(self) -> "Disk":
        """Return another one that goes its own way."""
        files = {number: _File(file.now, file.kept) for number, file in self._files.items()}
        return Disk(
            dict(self.names),
            set(self.folders),
            files,
            dict(self._kept_names),
            set(self._kept_folders),
            list(self._pending),
        )

    # -- operations

    def apply(self, operation: Operation) -> None:
        """Do one operation."""
        match operation.name:
            case "create":
                if operation.path not in self.names:
                    self._name(operation.path, EMPTY)
            case "rename":
                number = self.names.get(operation.source)
                if number is not None:
                    self._rename(_Renaming(operation.path, number, operation.source))
            case "unlink":
                self._rename(_Renaming(operation.path))
            case "mkdir":
                self._rename(_Renaming(operation.path, folder=True))
            case "sync_dir":
                self._sync_names(operation.path)
            case "index commit":
                if operation.path not in self.names:
                    self._name(operation.path, EMPTY)
                file = self._files[self.names[operation.path]]
                file.now = file.kept = Content(operation.data)
            case "fdatasync":
                if operation.path in self.names:
                    file = self._files[self.names[operation.path]]
                    file.kept = file.now
            case _:
                if operation.path in self.names:
                    file = self._files[self.names[operation.path]]
                    file.now = Content(after(file.now.data, operation))

    def _name(self, path: str, content: Content) -> None:
        number = len(self._files)
        self._files[number] = _File(content, EMPTY)
        self._rename(_Renaming(path, number))

    def _rename(self, renaming: _Renaming) -> None:
        renaming.apply(self.names, self.folders)
        self._pending.append(renaming)

    def _sync_names(self, folder: str) -> None:
        left = []
        for renaming in self._pending:
            if parent(renaming.path) == folder:
                renaming.apply(self._kept_names, self._kept_folders)
            else:
                left.append(renaming)
        self._pending = left

    # -- what a power cut leaves

    def everything(self) -> Tree:
        """Return what programs see: all of it happened to be durable."""
        return self._tree(self.names, self.folders, {number: file.now for number, file in self._files.items()})

    def only_synced(self) -> Tree:
        """Return what is certain to survive."""
        contents = {number: file.kept for number, file in self._files.items()}
        return self._tree(self._kept_names, self._kept_folders, contents)

    def some(self, random: Random) -> Tree:
        """Return what is certain to survive, and by chance some of the names and pages that are not."""
        names, folders = dict(self._kept_names), set(self._kept_folders)
        for renaming in self._pending:
            if random.random() < 0.5:
                renaming.apply(names, folders)
        contents = {
            number: file.kept if file.kept is file.now else _some_pages(file, random)
            for number, file in self._files.items()
        }
        return self._tree(names, folders, contents)

    def torn(self, before: "Disk", write: Operation, random: Random) -> Iterator[Tree]:
        """Yield what programs see but for the last write, of which a disk that lost power wrote the first sectors.

        Twice for each number of sectors that is tried: the file ends there, or has its length already and zeros for
        the rest.  Nothing where the write lies within one sector.

        Args:
            before: the disk before that write.
            random: chooses _EDGES numbers of sectors where there are more.
        """
        edges = _edges(write)
        if write.path not in self.names:
            return
        number = self.names[write.path]
        for edge in random.sample(edges, min(_EDGES, len(edges))):
            part = replace(write, data=write.data[: edge - write.offset])
            short = after(before._files[number].now.data, part)
            for data in (short, short.ljust(len(self._files[number].now.data), b"\0")):
                contents = {other: file.now for other, file in self._files.items()}
                yield self._tree(self.names, self.folders, {**contents, number: Content(data)})

    def _tree(self, names: Mapping[str, int], folders: Iterable[str], contents: Mapping[int, Content]) -> Tree:
        there = frozenset(_connected(set(folders)))
        return Tree({path: contents[n] for path, n in names.items() if parent(path) in there | {""}}, there)


def _some_pages(file: _File, random: Random) -> Content:
    """Return the durable bytes of a file with some of the pages, and perhaps the length, that are not."""
    old, new = file.kept.data, file.now.data
    length = random.choice((len(old), len(new)))
    pages = []
    for start in range(0, length, PAGE_BYTES):
        end = min(start + PAGE_BYTES, length)
        source = new if random.random() < 0.5 else old
        pages.append(source[start:end].ljust(end - start, b"\0"))
    return Content(b"".join(pages))


def _edges(write: Operation) -> list[int]:
    """Return the edges of sectors inside a write."""
    first = (write.offset // SECTOR_BYTES + 1) * SECTOR_BYTES
    return list(range(first, write.offset + len(write.data), SECTOR_BYTES))


def _connected(folders: set[str]) -> set[str]:
    """Return those folders whose own names are there, too."""
    there: set[str] = set()
    for path in sorted(folders, key=len):
        if parent(path) in there | {""}:
            there.add(path)
    return there
