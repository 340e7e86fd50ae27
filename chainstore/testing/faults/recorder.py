"""The recorder: every operation that changes a directory tree, written down with its data while it happens."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chainstore.storage import fs
from chainstore.testing.faults.disk import Disk
from chainstore.testing.faults.operations import Operation
from chainstore.testing.faults.trees import read_tree


class Recorder:
    """Writes down what `chainstore.storage.fs` and the index do below a directory.

    Operations that failed are left out, so what it wrote down of a failing disk is not all that happened.

    Attributes:
        start: the disk as it was when recording began: everything there is durable.
        operations: what happened since, oldest first.
    """

    def __init__(self, root: Path, start: Disk | None = None) -> None:
        self.root = root
        self.start = start if start is not None else Disk.of(read_tree(root))
        self.operations: list[Operation] = []
        self._lock = threading.Lock()

    @contextmanager
    def installed(self) -> Iterator["Recorder"]:
        """Write down what this process does inside the block; others that listen go on hearing of it."""
        before = fs.changed

        def hear(name: str, path: Path, details: tuple[object, ...]) -> None:
            before(name, path, details)
            self._write_down(name, path, details)

        fs.changed = hear
        try:
            yield self
        finally:
            fs.changed = before

    def _write_down(self, name: str, path: Path, details: tuple[object, ...]) -> None:
        where = relative_to(self.root, path)
        if where is None:
            return
        match name, details:
            case (("pwrite" | "append"), (int(offset), *parts)):
                data = b"".join(bytes(part) for part in parts)  # type: ignore[call-overload]
                operation = Operation(name, where, offset=offset, data=data)
            case (("truncate" | "preallocate"), (int(length),)):
                operation = Operation(name, where, length=length)
            case "punch", (int(offset), int(length)):
                operation = Operation(name, where, offset=offset, length=length)
            case "rename", (Path() as source,):
                operation = Operation(name, where, source=relative_to(self.root, source) or "")
            case "index commit", ():
                operation = Operation(name, where, data=path.read_bytes())
            case _, ():
                operation = Operation(name, where)
            case _:
                raise ValueError(f"no such operation: {name} {details}")
        with self._lock:
            self.operations.append(operation)


def relative_to(root: Path, path: Path) -> str | None:
    """Return a path relative to a directory, with "/"; "" for the directory itself, None where it lies elsewhere."""
    above, text = str(root), str(path)
    if text.startswith(above) and text[len(above) : len(above) + 1] in ("/", ""):
        return text[len(above) + 1 :]
    return None
