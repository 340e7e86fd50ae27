"""Identity: whether an index belongs to the repository that it is used for."""

from typing import Protocol

from chainstore.errors import WrongRepository
from chainstore.odb.layout import Layout
from chainstore.odb.record import Sealer
from chainstore.odb.view import View
from chainstore.storage.index import Reader


class Readable(Protocol):
    """An index, or what stands for one."""

    def read(self) -> Reader: ...


def check_repository(index: Readable, layout: Layout, sealer: Sealer) -> tuple[bytes, int]:
    """Return what an index says of (hash of the format file, keyring number), if it belongs to this repository.

    Raises:
        WrongRepository: it belongs to another.
    """
    with index.read() as rows:
        repo_id, format_hash, keyring = View(rows, sealer).identity()
    if repo_id != sealer.repo_id:
        raise WrongRepository(
            f"the index in {layout.root} belongs to repository {repo_id.hex()}, not {sealer.repo_id.hex()}",
            hint="put the right index back, or make one with `chain rebuild-index`",
        )
    return format_hash, keyring
