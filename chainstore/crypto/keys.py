"""Key providers: passphrase, key file, key command.

Each gives 32 bytes, the same ones every time; the keyring derives each slot's wrapping key from them.

    >>> Passphrase("correct horse battery staple")
    Passphrase(...)
"""

import struct
import unicodedata
from dataclasses import dataclass
from typing import ClassVar

from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from chainstore.crypto.aead import KEY_BYTES
from chainstore.crypto.command import KeyCommand
from chainstore.crypto.keyfile import KeyFile, generate_key_file
from chainstore.crypto.provider import KeyProvider, RandomBytes
from chainstore.errors import InvalidInput, Malformed

__all__ = ["Argon2Cost", "KeyCommand", "KeyFile", "KeyProvider", "Passphrase", "generate_key_file"]

_SALT_BYTES = 16
_STORED_COST = struct.Struct("<IBB16s")  # memory in KiB, passes, lanes, salt


@dataclass(frozen=True, slots=True)
class Argon2Cost:
    """What one guess at a passphrase costs: 64 MiB and 0.1 to 0.4 s by default.

    Attributes:
        memory_kib: 8 * lanes to 1 GiB.
        passes: 1 to 10.
        lanes: threads, 1 to 16.

    Raises:
        InvalidInput: outside those bounds; they keep a hostile slot from taking all memory.

    Source: RFC 9106, section 4, second recommendation.
    """

    memory_kib: int = 64 << 10
    passes: int = 3
    lanes: int = 4

    def __post_init__(self) -> None:
        bounds = 1 <= self.passes <= 10 and 1 <= self.lanes <= 16
        if not bounds or not 8 * self.lanes <= self.memory_kib <= 1 << 20:
            raise InvalidInput(f"unreasonable Argon2 cost: {self.memory_kib} KiB, {self.passes} x {self.lanes}")


_DEFAULT_COST = Argon2Cost()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Passphrase:
    """A key stretched from a passphrase with Argon2id; cost and salt are kept in the slot.

    Args:
        text: not empty; made NFC, so that one text typed on two systems is one passphrase.
        cost: for new slots; an existing slot says its own.

    Raises:
        InvalidInput: the text is empty.
    """

    text: str
    cost: Argon2Cost = _DEFAULT_COST

    kind: ClassVar[str] = "passphrase"

    def __post_init__(self) -> None:
        if not self.text:
            raise InvalidInput("an empty passphrase protects nothing")

    def __repr__(self) -> str:
        return "Passphrase(...)"

    @property
    def id(self) -> str:
        return "the passphrase"

    def wrap(self, repo_id: bytes, random: RandomBytes) -> tuple[bytes, bytes]:
        salt = random(_SALT_BYTES)
        stored = _STORED_COST.pack(self.cost.memory_kib, self.cost.passes, self.cost.lanes, salt)
        return self._stretch(self.cost, salt), stored

    def unwrap(self, repo_id: bytes, stored: bytes) -> bytes:
        if len(stored) != _STORED_COST.size:
            raise Malformed("passphrase slot", f"{len(stored)} bytes of Argon2 parameters, not {_STORED_COST.size}")
        memory_kib, passes, lanes, salt = _STORED_COST.unpack(stored)
        try:
            cost = Argon2Cost(memory_kib, passes, lanes)
        except InvalidInput as error:
            raise Malformed("passphrase slot", str(error)) from None
        return self._stretch(cost, salt)

    def _stretch(self, cost: Argon2Cost, salt: bytes) -> bytes:
        # surrogateescape: an environment variable need not be UTF-8, and is still the same bytes every time
        text = unicodedata.normalize("NFC", self.text).encode("utf-8", "surrogateescape")
        stretch = Argon2id(
            salt=salt, length=KEY_BYTES, iterations=cost.passes, lanes=cost.lanes, memory_cost=cost.memory_kib
        )
        return stretch.derive(text)
