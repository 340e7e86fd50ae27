"""Growth: the records that packs grew by, read back from the packs themselves.

After a crash what the log says must be there to the byte (`read_growth`); a rebuild takes what it can get
(`Salvage`).  Whether payloads are what was stored is found out when they are read.
"""

from collections.abc import Iterator

from chainstore.errors import Damaged, Malformed
from chainstore.model.change import PackGrown
from chainstore.model.frame import Header, is_record_kind, split_record
from chainstore.odb.rows import Placed, is_inline
from chainstore.storage import fs
from chainstore.storage.pack import PackDir, salvage, scan


def read_growth(packs: PackDir, growth: PackGrown) -> list[Placed]:
    """Return the records that a pack grew by.

    Raises:
        Damaged: the pack is missing or not what the log says.
    """
    name = growth.pack.hex()
    try:
        with fs.open_file(packs.path(growth.pack)) as file:
            if file.size() < growth.stop:
                raise Damaged(f"pack {name} has {file.size()} bytes where {growth.stop} were committed")
            return [
                Placed(offset, header, _inline(file, offset, header))
                for offset, header in scan(file, growth.start, growth.stop, f"pack {name}")
                if is_record_kind(header.kind)
            ]
    except FileNotFoundError:
        raise Damaged(f"pack {name} is missing") from None


class Salvage:
    """Reads the records of a pack's range, skipping those whose headers are damaged.

    Args:
        repo_id: records of other repositories are skipped too.
        problems: where what is damaged is told, for people to read.
    """

    def __init__(self, packs: PackDir, repo_id: bytes, problems: list[str]) -> None:
        self._packs, self._repo_id, self._problems = packs, repo_id, problems

    def __call__(self, growth: PackGrown) -> Iterator[Placed]:
        """Yield the records that a pack grew by; none where it is missing."""
        name = growth.pack.hex()
        try:
            file = fs.open_file(self._packs.path(growth.pack))
        except FileNotFoundError:
            return  # told once, with the packs
        with file:
            stop = min(file.size(), growth.stop)
            for offset, header in self._headers(file, growth, stop, f"pack {name}"):
                if is_record_kind(header.kind) and header.repo_id == self._repo_id:
                    yield Placed(offset, header, _inline(file, offset, header))

    def is_intact(self, growth: PackGrown, placed: Placed) -> bool:
        """Whether the payload of a record has the checksum that was stored with it; needs no key."""
        with fs.open_file(self._packs.path(growth.pack)) as file:
            data = file.pread(placed.offset, placed.header.record_bytes)
        try:
            split_record(memoryview(data), growth.pack.hex(), placed.offset)
        except Malformed:
            return False
        return True

    def _headers(self, file: fs.File, growth: PackGrown, stop: int, what: str) -> list[tuple[int, Header]]:
        try:
            return list(scan(file, growth.start, stop, what))
        except Malformed as error:
            self._problems.append(str(error))
            return list(salvage(file, growth.start, stop, what))


def _inline(file: fs.File, offset: int, header: Header) -> bytes | None:
    """Return the bytes of a record that is small enough to lie in the index too."""
    return file.pread(offset, header.record_bytes) if is_inline(header.kind, header.record_bytes) else None
