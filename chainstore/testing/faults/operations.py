"""Operations: what was done to a disk, one by one, and what each does to the bytes of its file."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation that changed something.

    Attributes:
        name: as `chainstore.storage.fs.changed` has it.
        path: relative to the tree that is looked at, with "/"; "" is the tree itself.
        offset: where `data` was written, or a hole begins.
        length: of a truncated or preallocated file, or of a hole.
        data: what was written; for an "index commit" the whole file afterwards.
        source: the old path of a renamed file.
    """

    name: str
    path: str
    offset: int = 0
    length: int = 0
    data: bytes = b""
    source: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.path}"


def after(data: bytes, operation: Operation) -> bytes:
    """Return what becomes of the bytes of a file."""
    match operation:
        case Operation("pwrite" | "append", offset=offset, data=new):
            return data[:offset].ljust(offset, b"\0") + new + data[offset + len(new) :]
        case Operation("truncate", length=length):
            return data[:length].ljust(length, b"\0")
        case Operation("preallocate", length=length):
            return data.ljust(length, b"\0")
        case Operation("punch", offset=offset, length=length):
            end = min(offset + length, len(data))
            return data[:offset] + bytes(max(0, end - offset)) + data[end:]
    raise ValueError(f"no such operation: {operation.name}")
