"""A folder that files are written below, and never beside: what `checkout -o` may touch."""

import filecmp
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from chainstore.errors import InvalidInput

Write = Callable[[IO[bytes]], None]


@dataclass(frozen=True, slots=True)
class Part:
    """One file to be written.

    Attributes:
        name: its folders and its own name, below the folder.
        nbytes: about how long it will be.
        write: puts its bytes into a stream.
        executable: whether it may be run.
    """

    name: tuple[str, ...]
    nbytes: int
    write: Write
    executable: bool = False


def check_names(parts: Iterable[Part]) -> None:
    """Refuse names that leave the folder, or that cannot all be files in it.

    Raises:
        InvalidInput: says which.
    """
    names: set[tuple[str, ...]] = set()
    for part in parts:
        if not part.name or any(word in ("", ".", "..") or "/" in word or "\0" in word for word in part.name):
            raise InvalidInput(
                f"{'/'.join(part.name)!r} would be written outside the output folder; nothing was written"
            )
        if part.name in names:
            raise InvalidInput(f"two things would be written to {'/'.join(part.name)}", hint=_OTHERWISE)
        names.add(part.name)
    for name in names:
        for depth in range(1, len(name)):
            if name[:depth] in names:
                raise InvalidInput(f"{'/'.join(name[:depth])} would be a file and a folder", hint=_OTHERWISE)


_OTHERWISE = "leave one out with --select, or use --format torch"


class Folder:
    """Writes files below `root`, each whole or not at all; follows no link that it finds there."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, part: Part) -> tuple[int, bool]:
        """Write one file whose name was checked; return its bytes, and whether an equal one was there already.

        Raises:
            InvalidInput: a link or something else that is no folder stands in the way.
        """
        folder = self._enter(part.name[:-1])
        target, draft = folder / part.name[-1], folder / f".chain-{os.getpid()}.part"
        if target.is_dir() and not target.is_symlink():
            raise InvalidInput(f"{target} is a folder; a file is to be written there")
        mode = 0o777 if part.executable else 0o666
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb") as stream:
                part.write(stream)
            nbytes = draft.stat().st_size
            if not target.is_symlink() and target.is_file() and filecmp.cmp(draft, target, shallow=False):
                return nbytes, True
            draft.replace(target)
            return nbytes, False
        finally:
            draft.unlink(missing_ok=True)

    def _enter(self, names: tuple[str, ...]) -> Path:
        self._root.mkdir(parents=True, exist_ok=True)
        place = self._root
        for name in names:
            place = place / name
            try:
                place.mkdir()
            except FileExistsError:
                if not stat.S_ISDIR(place.lstat().st_mode):
                    raise InvalidInput(
                        f"{place} is not a folder (or a link to one), so nothing is written below it",
                        hint="move it away, or choose another output folder",
                    ) from None
        return place
