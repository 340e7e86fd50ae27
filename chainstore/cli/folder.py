"""A folder that files are written below, and never beside: what `checkout -o` may touch."""

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, cast

from chainstore.errors import InvalidInput

Write = Callable[[IO[bytes]], None]
ABSENT, EQUAL, DIFFERENT = "absent", "equal", "different"  # what stands where a file is to be written
_PIECE_BYTES: Final = 1 << 20


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


class _Differs(Exception):
    """What is to be written is not what is there."""


class _Comparison:
    """A stream that compares what is written to it with a file, and is only written forward."""

    def __init__(self, there: IO[bytes]) -> None:
        self._there = there

    def write(self, data: bytes | memoryview) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _PIECE_BYTES):
            piece = view[start : start + _PIECE_BYTES]
            if self._there.read(len(piece)) != piece:
                raise _Differs
        return len(view)

    def flush(self) -> None:
        """There is nothing to flush."""


class Folder:
    """Writes files below `root`, each whole or not at all; follows no link that it finds there."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def compare(self, part: Part) -> str:
        """Return what stands in the place of a file whose name was checked: ABSENT, EQUAL or DIFFERENT.

        Makes the file's bytes, up to the first that differs, and writes nothing.
        """
        target = self._root.joinpath(*part.name)
        try:
            found = target.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return ABSENT
        links = any(self._root.joinpath(*part.name[:depth]).is_symlink() for depth in range(1, len(part.name)))
        if links or not stat.S_ISREG(found.st_mode):
            return DIFFERENT
        with target.open("rb") as stream:
            try:
                part.write(cast(IO[bytes], _Comparison(stream)))
            except _Differs:
                return DIFFERENT
            return DIFFERENT if stream.read(1) else EQUAL

    def foreign(self, parts: Iterable[Part]) -> list[str]:
        """Return the names of the files and links below the folder that are none of `parts`, sorted."""
        ours = {"/".join(part.name) for part in parts}
        names: list[str] = []
        for place, folders, files in os.walk(self._root, followlinks=False):
            links = [name for name in folders if Path(place, name).is_symlink()]
            names += [Path(place, name).relative_to(self._root).as_posix() for name in [*files, *links]]
        return sorted(name for name in names if name not in ours)

    def remove(self, names: Sequence[str]) -> None:
        """Delete files and links below the folder, and the folders that this leaves empty."""
        for name in names:
            (self._root / name).unlink()
            for above in list(Path(name).parents)[:-1]:
                try:
                    (self._root / above).rmdir()
                except OSError:
                    break  # something is left in it

    def put(self, part: Part) -> int:
        """Write one file whose name was checked, over what is there; return its bytes.

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
            draft.replace(target)
            return nbytes
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
