"""The keyring: a repository's keys, wrapped once for every way to open it.

The bundle holds the repository's own random keys.  A slot holds the bundle wrapped under a key that one provider
(passphrase, key file, command) can find again, so that a way in is added or removed by rewriting a slot, not data.

    >>> from chainstore.crypto.keys import Passphrase
    >>> import secrets
    >>> bundle = new_bundle(secrets.token_bytes)
    >>> ring = Keyring(0, bytes(16)).with_slot(Passphrase("hunter2"), bundle, random=secrets.token_bytes)
    >>> Keyring.from_bytes(ring.to_bytes()).open(Passphrase("hunter2")) == bundle
    True

A keyring as stored: MAGIC 8 | version 1 | number 8 | repo id 16 | slots 2 | slots | fingerprint 32, little-endian.
A slot: id 8 | kind 1 + n | label 2 + n | stored 2 + n | commitment 32 | wrapped bundle 2 + n.
"""

import struct
from dataclasses import dataclass, field, replace
from hmac import compare_digest
from typing import Self

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap_with_padding, aes_key_wrap_with_padding

from chainstore.crypto.aead import KEY_BYTES
from chainstore.crypto.bundle import FIRST_GENERATION, Bundle, new_bundle
from chainstore.crypto.provider import KIND_NAMES, MAX_KIND_BYTES, MAX_STORED_BYTES, KeyProvider, RandomBytes
from chainstore.errors import Denied, FormatTooNew, InvalidInput, Malformed, NotFound, WrongKey
from chainstore.ids import fingerprint

__all__ = ["FIRST_GENERATION", "MAX_KEYRING_BYTES", "MAX_SLOTS", "Bundle", "Keyring", "Slot", "new_bundle"]

MAX_SLOTS = 32
MAX_KEYRING_BYTES = 1 << 20  # a hostile file is refused before it is parsed
MAX_LABEL_BYTES = 200

_MAGIC = b"CSKEYS\r\n"  # the line end shows what a text-mode copy broke
_VERSION = 1
_HEAD = struct.Struct("<8sBQ16sH")
_CHECK_BYTES = 32
_SLOT_ID_BYTES = 8
_REPO_ID_BYTES = 16
_COMMITMENT_BYTES = 32
_MAX_WRAPPED_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class Slot:
    """One way to open a repository; holds no secret.

    Attributes:
        id: 16 random hex digits, what `chain key remove` takes.
        kind: of the provider that opens it.
        label: shown to people, chosen by them; lies in the clear.
        stored: what the provider needs to find its key again: Argon2 cost and salt, or a KMS's ciphertext.
        commitment: 32 bytes that only the right key derives, so that a wrong one is told before anything is unwrapped.
        wrapped: the bundle under AES key wrap with padding.
    """

    id: str
    kind: str
    label: str
    stored: bytes = field(repr=False)
    commitment: bytes = field(repr=False)
    wrapped: bytes = field(repr=False)

    def describe(self) -> str:
        """Return what a person recognises the slot by: `key file 1f0c... (laptop)`."""
        name = f"{KIND_NAMES.get(self.kind, self.kind)} {self.id}"
        return f"{name} ({self.label})" if self.label else name


@dataclass(frozen=True, slots=True)
class Keyring:
    """The key slots of a repository, numbered so that an old copy put back is noticed.

    Attributes:
        number: grows by one with every change; the commit log records it.
        repo_id: 16 bytes.
        slots: one at least, once there is something to open.
    """

    number: int
    repo_id: bytes
    slots: tuple[Slot, ...] = ()

    def __post_init__(self) -> None:
        if len(self.repo_id) != _REPO_ID_BYTES:
            raise InvalidInput(f"a repository id has {_REPO_ID_BYTES} bytes, not {len(self.repo_id)}")

    def with_slot(self, provider: KeyProvider, bundle: Bundle, *, label: str = "", random: RandomBytes) -> Self:
        """Return this keyring, one number on, with one more slot that `provider` opens.

        Args:
            label: printable, at most MAX_LABEL_BYTES as UTF-8; lies in the clear.
            random: n -> n random bytes.

        Raises:
            InvalidInput: the label is unfit, there are MAX_SLOTS slots, or the bundle has too many generations.
            KeyRequired, WrongKey: the provider could not give a key.
        """
        if len(self.slots) >= MAX_SLOTS:
            raise InvalidInput(f"a keyring holds {MAX_SLOTS} slots at most; remove one first")
        if not _is_label(label):
            raise InvalidInput(f"a key's label is printable text of at most {MAX_LABEL_BYTES} bytes")
        slot_id = random(_SLOT_ID_BYTES)
        if any(slot.id == slot_id.hex() for slot in self.slots):
            raise InvalidInput("the random source repeats itself: it gave the id of an earlier slot again")
        key, stored = provider.wrap(self.repo_id, random)
        wrapping, commitment = _slot_keys(key, self.repo_id, slot_id)
        wrapped = aes_key_wrap_with_padding(wrapping, bundle.to_bytes())
        if len(wrapped) > _MAX_WRAPPED_BYTES or len(stored) > MAX_STORED_BYTES:
            raise InvalidInput("these keys are too many for one slot: drop the generations no record uses any more")
        slot = Slot(slot_id.hex(), provider.kind, label, stored, commitment, wrapped)
        return replace(self, number=self.number + 1, slots=(*self.slots, slot))

    def without_slot(self, slot_id: str) -> Self:
        """Return this keyring, one number on, without the slot of that id.

        Raises:
            NotFound: there is none.  InvalidInput: it is the last, without which nothing opens the repository.
        """
        left = tuple(slot for slot in self.slots if slot.id != slot_id)
        if len(left) == len(self.slots):
            raise NotFound(f"no key slot {slot_id!r}", hint=f"there are: {self.describe()}")
        if not left:
            raise InvalidInput(
                "the last key slot cannot be removed: nothing would open this repository any more",
                hint="add another first with `chain key add`",
            )
        return replace(self, number=self.number + 1, slots=left)

    def open(self, provider: KeyProvider) -> Bundle:
        """Return the bundle in the first slot that `provider` opens; see `unlock`."""
        return self.unlock(provider)[1]

    def unlock(self, provider: KeyProvider) -> tuple[Slot, Bundle]:
        """Return the first slot that `provider` opens, and its bundle.

        Raises:
            WrongKey: it opens none; says what was tried and what would open it.
            KeyRequired: the provider could not give a key at all.
            Malformed: the slot is the provider's, but what it holds is broken.

        Cost: a key derivation per slot of the provider's kind (0.1 to 0.4 s each for a passphrase); none without one.
        """
        matching = [slot for slot in self.slots if slot.kind == provider.kind]
        failures: list[Denied | Malformed] = []
        for stored in dict.fromkeys(slot.stored for slot in matching):  # a file is read, a plain command run, once
            try:
                key = provider.unwrap(self.repo_id, stored)
            except (Denied, Malformed) as error:
                failures.append(error)  # a KMS may refuse another's ciphertext, and the next slot be its own
                continue
            for slot in (slot for slot in matching if slot.stored == stored):
                wrapping, commitment = _slot_keys(key, self.repo_id, bytes.fromhex(slot.id))
                if compare_digest(commitment, slot.commitment):
                    return slot, _unwrap(wrapping, slot)
        raise failures[0] if failures else self._wrong_key(provider, matching)

    def _wrong_key(self, provider: KeyProvider, matching: list[Slot]) -> WrongKey:
        tried = ", ".join(slot.id for slot in matching) or "no slot, as none is of its kind"
        return WrongKey(
            f"{provider.id} does not open this repository (tried {tried}); it opens with: {self.describe()}",
            hint="name the right key with --key-file, --key-command, CHAIN_KEY_FILE, CHAIN_KEY_COMMAND or a passphrase",
        )

    def describe(self) -> str:
        """Return what opens this repository, for people: `key file 1f0c... (laptop), passphrase 93ab...`."""
        return ", ".join(slot.describe() for slot in self.slots) or "nothing"

    def to_bytes(self) -> bytes:
        """Return the keyring as stored.

        Raises:
            InvalidInput: it has no slot, so storing it would lock everybody out.
        """
        if not self.slots:
            raise InvalidInput("a keyring without a slot opens nothing")
        head = _HEAD.pack(_MAGIC, _VERSION, self.number, self.repo_id, len(self.slots))
        body = head + b"".join(_slot_bytes(slot) for slot in self.slots)
        return body + fingerprint("keyring", body)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the keyring `to_bytes` wrote.

        Raises:
            Malformed: it did not; any flipped bit shows.  FormatTooNew: a later version did.
        """
        if not _HEAD.size + _CHECK_BYTES <= len(data) <= MAX_KEYRING_BYTES:
            raise Malformed("keyring", f"{len(data)} bytes are too few or too many")
        body = data[:-_CHECK_BYTES]
        magic, version, number, repo_id, count = _HEAD.unpack_from(body)
        if magic != _MAGIC:
            raise Malformed("keyring", "it does not begin like one", 0)
        if not compare_digest(fingerprint("keyring", body), data[-_CHECK_BYTES:]):
            raise Malformed("keyring", "its fingerprint does not match its content")
        if version != _VERSION:
            raise FormatTooNew(f"keyring version {version}", "read")
        return cls(number, repo_id, _read_slots(_Cursor(body, _HEAD.size), count))


def _slot_keys(key: bytes, repo_id: bytes, slot_id: bytes) -> tuple[bytes, bytes]:
    info = b"chainstore/v1/slot" + repo_id + slot_id
    both = HKDF(SHA256(), KEY_BYTES + _COMMITMENT_BYTES, None, info).derive(key)
    return both[:KEY_BYTES], both[KEY_BYTES:]


def _unwrap(wrapping: bytes, slot: Slot) -> Bundle:
    try:
        return Bundle.from_bytes(aes_key_unwrap_with_padding(wrapping, slot.wrapped))
    except InvalidUnwrap:
        raise Malformed(f"key slot {slot.id}", "the key fits, the wrapped keys are broken") from None


def _is_label(label: str) -> bool:
    # unprintable text could steer the terminal of whoever lists the slots
    return label.isprintable() and len(label.encode("utf-8", "replace")) <= MAX_LABEL_BYTES


def _slot_bytes(slot: Slot) -> bytes:
    kind, label = slot.kind.encode("ascii"), slot.label.encode()
    head = bytes.fromhex(slot.id) + bytes((len(kind),)) + kind
    return head + _sized(label) + _sized(slot.stored) + slot.commitment + _sized(slot.wrapped)


def _sized(part: bytes) -> bytes:
    return len(part).to_bytes(2, "little") + part


class _Cursor:
    """A place in bytes that are read field by field; running over the end is `Malformed`."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self.at = data, at

    def take(self, size: int) -> bytes:
        part = self._data[self.at : self.at + size]
        if len(part) != size:
            raise self.malformed("a field runs over the end")
        self.at += size
        return part

    def field(self, width: int, limit: int) -> bytes:
        size = int.from_bytes(self.take(width), "little")
        if size > limit:
            raise self.malformed(f"a field of {size} bytes is longer than {limit}")
        return self.take(size)

    def at_end(self) -> bool:
        return self.at == len(self._data)

    def malformed(self, why: str) -> Malformed:
        return Malformed("keyring", why, self.at)


def _read_slots(cursor: _Cursor, count: int) -> tuple[Slot, ...]:
    if not 1 <= count <= MAX_SLOTS:
        raise cursor.malformed(f"{count} slots")
    slots = tuple(_read_slot(cursor) for _ in range(count))
    if not cursor.at_end():
        raise cursor.malformed("bytes after the last slot")
    if len({slot.id for slot in slots}) != count:
        raise cursor.malformed("two slots of one id")
    return slots


def _read_slot(cursor: _Cursor) -> Slot:
    slot_id = cursor.take(_SLOT_ID_BYTES).hex()
    try:
        kind, label = cursor.field(1, MAX_KIND_BYTES).decode("ascii"), cursor.field(2, MAX_LABEL_BYTES).decode()
    except UnicodeDecodeError:
        raise cursor.malformed("a slot's kind or label is no text") from None
    if not kind.isprintable() or not _is_label(label):
        raise cursor.malformed("a slot's kind or label is not printable")
    stored, commitment = cursor.field(2, MAX_STORED_BYTES), cursor.take(_COMMITMENT_BYTES)
    return Slot(slot_id, kind, label, stored, commitment, cursor.field(2, _MAX_WRAPPED_BYTES))
