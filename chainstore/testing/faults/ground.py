"""The ground: a real directory that becomes one tree after the other, only what differs being written.

An index is known by the inode of its file, which a power cut does not change and a copy does; so files named
`data.mdb` keep their inodes from one tree to the next, whatever became of their names in between.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chainstore.storage import fs
from chainstore.testing.faults.recorder import relative_to
from chainstore.testing.faults.trees import NOT_SEEN, Content, Tree

INDEX_FILE = "data.mdb"


class Ground:
    """A directory in which trees are put.

    Whatever else changes it goes through `chainstore.storage.fs` and the index, inside the block of `watched`.

    Args:
        root: the directory.
        spare: an empty directory on the same file system, for second names of files whose inodes are kept.
    """

    def __init__(self, root: Path, spare: Path) -> None:
        self.root, self._spare = root, spare
        self._there: dict[str, Content | None] = {}  # None: with bytes that nobody knows
        self._folders: set[str] = set()
        for path in root.rglob("*"):
            where = path.relative_to(root).as_posix()
            if path.is_dir():
                self._folders.add(where)
            else:
                self._there[where] = None
            if path.name == INDEX_FILE:
                os.link(path, self._second_name(where))

    @contextmanager
    def watched(self) -> Iterator["Ground"]:
        """Notice what this process changes in the directory inside the block."""
        before = fs.changed

        def notice(name: str, path: Path, details: tuple[object, ...]) -> None:
            before(name, path, details)
            where = relative_to(self.root, path)
            if where and name == "mkdir":
                self._folders.add(where)
            elif where and name not in ("fdatasync", "sync_dir"):
                self._there[where] = None

        fs.changed = notice
        try:
            yield self
        finally:
            fs.changed = before

    def put(self, tree: Tree) -> None:
        """Make the directory what `tree` says; nobody has anything in it open."""
        self._take_away(tree)
        for folder in sorted(tree.folders, key=len):
            (self.root / folder).mkdir(exist_ok=True)
        for where, content in tree.files.items():
            there = self._there.get(where)
            if there is not content and (there is None or there.mark != content.mark):
                self._write(where, content)
        self._there, self._folders = dict(tree.files), set(tree.folders)

    def _take_away(self, tree: Tree) -> None:
        for where in self._there:
            path = self.root / where
            if where not in tree.files:
                path.unlink(missing_ok=True)
            if path.name == INDEX_FILE:
                for name in NOT_SEEN:
                    path.with_name(name).unlink(missing_ok=True)
        for folder in sorted(self._folders - tree.folders, key=len, reverse=True):
            shutil.rmtree(self.root / folder, ignore_errors=True)

    def _write(self, where: str, content: Content) -> None:
        path = self.root / where
        if path.name == INDEX_FILE:
            second = self._second_name(where)
            second.touch()
            path.unlink(missing_ok=True)
            os.link(second, path)
        with open(path, "r+b" if path.name == INDEX_FILE else "wb") as file:
            file.write(content.data)
            file.truncate()

    def _second_name(self, where: str) -> Path:
        return self._spare / where.replace("/", "-")
