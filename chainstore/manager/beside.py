"""Beside: the files that a snapshot holds beside the state, read when the state is captured.

A snapshot becomes durable many steps later, and by then a file may be of another step.  So files of up to 1 MiB are
read at once and travel with the capture; larger ones are left where they are for the writer to read, as the loop must
not wait for them.  A file that cannot be read costs a warning, never the snapshot of the state.
"""

import os
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from chainstore.manager.resuming import tell
from chainstore.manager.storing import look_at
from chainstore.observe import Observer
from chainstore.repository import FileContent

File: TypeAlias = str | os.PathLike[str] | FileContent
"""A file on its way into a snapshot: where it is, or what was in it."""

MOST_BYTES: Final = 1 << 20


class Beside:
    """Files that go with every snapshot.

    Args:
        files: name in the snapshot -> path.
    """

    def __init__(self, files: Mapping[str, str], observer: Observer) -> None:
        self._paths, self._observer = dict(files), observer
        self._more: list[Callable[[], Mapping[str, FileContent]]] = []
        self._gone: set[str] = set()  # what was told of already
        self._left_out: set[str] = set()  # likewise, by the writer

    def add(self, more: Callable[[], Mapping[str, FileContent]]) -> None:
        """Let snapshots hold what this returns as well."""
        self._more.append(more)

    def now(self) -> dict[str, File]:
        """Return the files as they are now: the content of small ones, the place of large ones; says what is missing.

        Cost: a read of each small file, from memory 10 us for 100 KB, 30 us for 1 MB.  Nothing is kept of the last
        time: times of a file say too little, as several changes may carry one, and those of mapped memory none.
        """
        found: dict[str, File] = {}
        for more in self._more:  # first, as they never change: of large ones, only the end shares a chunk with others
            found |= more()
        for name, path in self._paths.items():
            try:
                found[name] = _file(path)
                self._gone.discard(name)
            except OSError as error:
                if name not in self._gone:
                    self._gone.add(name)
                    self._tell(path, error.strerror or str(error))
        return found

    def stored(self, left_out: Mapping[str, str]) -> None:
        """Take note that a snapshot became durable, and why files are not in it: name -> reason."""
        for name in sorted(left_out.keys() - self._left_out):
            self._tell(self._paths.get(name, name), left_out[name])
        self._left_out = set(left_out)

    def _tell(self, path: str, why: str) -> None:
        text = f"{path} is not stored beside the state ({why}); training goes on, and snapshots are made without it"
        tell(self._observer, "file-not-stored", text)


def _file(path: str) -> File:
    """Return what is in a file, or its path if that is more than may travel with a capture."""
    state = look_at(path)
    if state.st_size > MOST_BYTES:
        return path
    pieces, room = [], MOST_BYTES + 1  # it may have grown, or be one of the kernel's, which say that they are empty
    with open(path, "rb", buffering=0) as file:
        while room and (piece := file.read(min(room, state.st_size + 4096))):
            pieces.append(piece)
            room -= len(piece)
    return FileContent(b"".join(pieces), bool(state.st_mode & 0o100)) if room else path
