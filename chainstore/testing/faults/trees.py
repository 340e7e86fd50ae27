"""Trees: what lies in a directory, cheap to compare."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from chainstore.ids import fingerprint

NOT_SEEN = frozenset({"lock.mdb"})  # LMDB makes it anew where nobody uses it


class Content:
    """The bytes of a file, and their fingerprint; the same object as long as they are the same."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    @cached_property
    def mark(self) -> bytes:
        """32 bytes that tell it from others."""
        return fingerprint("content", self.data)


EMPTY = Content(b"")


@dataclass(frozen=True)
class Tree:
    """What lies in a directory.

    Attributes:
        files: path -> content.
        folders: paths.
    """

    files: Mapping[str, Content]
    folders: frozenset[str]

    @cached_property
    def mark(self) -> bytes:
        """32 bytes that tell it from others."""
        files = [part for path in sorted(self.files) for part in (path.encode(), self.files[path].mark)]
        return fingerprint("tree", *files, b"", *(path.encode() for path in sorted(self.folders)))


def read_tree(root: Path) -> Tree:
    """Return what lies in a directory, less files that mean nothing after a power cut."""
    files, folders = {}, set()
    for path in sorted(root.rglob("*")):
        where = path.relative_to(root).as_posix()
        if path.is_dir():
            folders.add(where)
        elif path.name not in NOT_SEEN:
            data = path.read_bytes()
            files[where] = Content(data) if data else EMPTY
    return Tree(files, frozenset(folders))


def parent(path: str) -> str:
    """Return the folder that a path lies in; "" is the tree itself."""
    return path.rpartition("/")[0]
