"""The seam between a repository's key slots and wherever their keys come from: a person, a file, a command, a KMS."""

from collections.abc import Callable
from typing import Protocol

RandomBytes = Callable[[int], bytes]  # n -> n random bytes

MAX_STORED_BYTES = 4096  # what a provider may keep in a slot
MAX_KIND_BYTES = 32
KIND_NAMES = {"passphrase": "passphrase", "file": "key file", "command": "key command"}


class KeyProvider(Protocol):
    """Gives the 32-byte key that opens a repository's slots of one kind.

    A KMS fits: `wrap` asks it for a data key and stores the ciphertext, `unwrap` has it decrypted.  Both may block, ask
    a person, or be called from any thread; neither lets a secret into an error, a log or its `repr`.
    """

    @property
    def id(self) -> str:
        """What people know it by (`key file laptop.key`), in errors; no secret."""
        ...

    @property
    def kind(self) -> str:
        """Which slots it can open: at most 32 printable ASCII characters, kept in the slot."""
        ...

    def wrap(self, repo_id: bytes, random: RandomBytes) -> tuple[bytes, bytes]:
        """Return a key for a new slot (32 bytes) and what to store in the clear to get it again.

        Raises:
            KeyRequired: there is no key to be had.  WrongKey: what is there is none.
        """
        ...

    def unwrap(self, repo_id: bytes, stored: bytes) -> bytes:
        """Return the key (32 bytes) that `wrap` gave together with `stored`.

        Whether it is the right one shows in the slot's commitment.

        Raises:
            KeyRequired, WrongKey: as above.  Malformed: `stored` is not what this provider stores.
        """
        ...
