"""What is durable of a file and of a directory, and what a power cut leaves of the rest; for `forgetful`."""

import os
import random
from dataclasses import dataclass, field

PAGE_BYTES = 4096

Names = dict[str, int]
"""What a directory holds: inode numbers by name."""


@dataclass(slots=True)
class Unsynced:
    """A file that differs from what is durable of it.

    Attributes:
        length: the durable one, in bytes.
        pages: what is durable of the pages that were touched; b"" where nothing is.
    """

    length: int
    pages: dict[int, bytes] = field(default_factory=dict)

    def forget(self, path: str, source: random.Random) -> None:
        """Make the file at `path` what the cut leaves of it."""
        now = os.path.getsize(path)
        length = source.choice([self.length, now, source.randint(min(self.length, now), now)])
        kept = source.choice([0.0, 0.5, 0.5, 1.0])
        with open(path, "r+b", buffering=0) as file:
            for page, old in self.pages.items():
                start = page * PAGE_BYTES
                if start >= now or source.random() >= kept:
                    file.seek(start)
                    file.write(old.ljust(PAGE_BYTES, b"\0"))
            file.truncate(length)


@dataclass(slots=True)
class Directory:
    """The durable names of a directory, and what happened to them since, in order: a name is given an inode or none."""

    names: Names = field(default_factory=dict)
    changes: list[dict[str, int | None]] = field(default_factory=list)

    def after(self, count: int) -> Names:
        """Return the names once the first `count` changes happened."""
        names: dict[str, int | None] = dict(self.names)
        for change in self.changes[:count]:
            names |= change
        return {name: inode for name, inode in names.items() if inode is not None}

    def forget(self, source: random.Random) -> Names:
        """Return the names that the cut leaves."""
        return self.after(source.randint(0, len(self.changes)))

    def sync(self) -> None:
        """Make all of them durable."""
        self.names, self.changes = self.after(len(self.changes)), []
