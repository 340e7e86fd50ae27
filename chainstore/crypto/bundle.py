"""The bundle: a repository's own random keys, or the part of them that somebody was given.

As bytes: version 1 | (role 1 | generation 4 | key 32) ..., little-endian, strictly ascending by role and generation.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from chainstore.crypto.aead import KEY_BYTES
from chainstore.crypto.provider import RandomBytes
from chainstore.errors import FormatTooNew, InvalidInput, Malformed

FIRST_GENERATION = 1  # 0 stands for "not sealed" in record and log headers

_VERSION = 1
_KEY_ENTRY = struct.Struct("<BI32s")
_ID, _NAME, _DATA, _META = 1, 2, 3, 4  # roles on disk, never reused


@dataclass(frozen=True, slots=True, repr=False)
class Bundle:
    """The keys a holder has of a repository, 32 bytes each; a subset of them makes a lesser right.

    Whoever lacks `data` walks commits and trees and never reads a weight.

    Attributes:
        id: `K_id`, fixed for the repository's life.
        name: `K_name`, for the row keys of refs.
        data, meta: generation -> `K_data`, `K_meta`.

    Raises:
        InvalidInput: a key that is not 32 bytes, or a generation outside 1 to 2^32 - 1.
    """

    id: bytes | None
    name: bytes | None
    data: Mapping[int, bytes] = field(default_factory=dict)
    meta: Mapping[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", dict(self.data))
        object.__setattr__(self, "meta", dict(self.meta))
        for role, generation, key in self._entries():
            if len(key) != KEY_BYTES:
                raise InvalidInput(f"a key of a bundle has {KEY_BYTES} bytes, not {len(key)}")
            if role in (_DATA, _META) and not FIRST_GENERATION <= generation < 1 << 32:
                raise InvalidInput(f"{generation} is no key generation")

    def __repr__(self) -> str:
        held = [word for word, key in (("id", self.id), ("name", self.name)) if key is not None]
        return f"Bundle({', '.join([*held, f'data {sorted(self.data)}', f'meta {sorted(self.meta)}'])})"

    @property
    def generation(self) -> int:
        """The newest generation of `meta`, with which to write; 0 if there is none."""
        return max(self.meta, default=0)

    def next_generation(self, random: RandomBytes) -> "Bundle":
        """Return these keys and a new generation of `data` and `meta`."""
        new = max(self.generation, *self.data, 0) + 1
        return replace(self, data={**self.data, new: random(KEY_BYTES)}, meta={**self.meta, new: random(KEY_BYTES)})

    def newest_only(self) -> "Bundle":
        """Return these keys without all but the newest generation."""
        new = self.generation
        return replace(self, data={g: k for g, k in self.data.items() if g == new}, meta={new: self.meta[new]})

    def to_bytes(self) -> bytes:
        """Return the keys themselves, in the clear: for wrapping, or a pipe to a child process."""
        return bytes((_VERSION,)) + b"".join(_KEY_ENTRY.pack(*entry) for entry in self._entries())

    @classmethod
    def from_bytes(cls, data: bytes) -> "Bundle":
        """Return the bundle `to_bytes` wrote.

        Raises:
            Malformed: it did not.  FormatTooNew: a later version did.
        """
        if len(data) % _KEY_ENTRY.size != 1:
            raise Malformed("key bundle", f"{len(data)} bytes hold no whole number of keys")
        if data[0] != _VERSION:
            raise FormatTooNew(f"key bundle version {data[0]}", "read")
        entries = {(role, generation): key for role, generation, key in _KEY_ENTRY.iter_unpack(data[1:])}
        bundle = cls(
            entries.get((_ID, 0)),
            entries.get((_NAME, 0)),
            {generation: key for (role, generation), key in entries.items() if role == _DATA and generation},
            {generation: key for (role, generation), key in entries.items() if role == _META and generation},
        )
        if bundle.to_bytes() != data:
            raise Malformed("key bundle", "roles or generations are unknown, doubled or out of order")
        return bundle

    def _entries(self) -> Iterator[tuple[int, int, bytes]]:
        for role, key in ((_ID, self.id), (_NAME, self.name)):
            if key is not None:
                yield role, 0, key
        for role, keys in ((_DATA, self.data), (_META, self.meta)):
            yield from ((role, generation, keys[generation]) for generation in sorted(keys))


def new_bundle(random: RandomBytes) -> Bundle:
    """Return fresh keys for a new repository, at generation FIRST_GENERATION."""
    return Bundle(random(KEY_BYTES), random(KEY_BYTES)).next_generation(random)
