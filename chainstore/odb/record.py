"""Sealing: from an object's encoded bytes to a record, and back.

The one place that knows which key protects what: chunks under the data key, trees and commits under the metadata
key, rows of the index and lines of the log under keys derived from it.  Without keys (an unencrypted repository)
the same frames carry the bytes as they are.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import replace

from chainstore.crypto.aead import OVERHEAD, object_key, open_into, open_row, ref_key, row_header, seal_into, seal_row
from chainstore.crypto.keyring import Bundle
from chainstore.errors import Damaged, IdMismatch, KeyRequired, Malformed, WrongRepository
from chainstore.ids import Hasher, Kind, ObjectId, fingerprint
from chainstore.model.frame import FLAG_ENCRYPTED, FLAG_KEYFRAME, Header, Line

SUITE_NONE = 0
SUITE_V1 = 1  # BLAKE3 ids, AES-256-GCM, HKDF-SHA256

_ROW = struct.Struct("<IQ")  # generation, seq: in front of every sealed row, in the clear
_SEQ = struct.Struct(">Q")


def row_generation(value: bytes) -> int:
    """Return the key generation that a row says it was sealed with, which nothing proves; 0 where none is."""
    return int(_ROW.unpack_from(value)[0])


class Sealer:
    """Seal and open everything one repository stores; safe to share between threads.

    Args:
        repo_id: 16 bytes.
        bundle: its keys, None where it is unencrypted.
        random: n -> n random bytes; only nonces come from it.
        renew: gives the keys as they are now, for when something is met that was sealed with newer ones.

    Attributes:
        generation: of the keys that everything new is sealed with.
    """

    def __init__(
        self,
        repo_id: bytes,
        bundle: Bundle | None,
        random: Callable[[int], bytes],
        renew: Callable[[], Bundle] | None = None,
    ) -> None:
        self.repo_id = repo_id
        self._bundle = bundle
        self._random = random
        self._renew = renew
        self._suite = SUITE_V1 if bundle else SUITE_NONE
        self._flags = FLAG_ENCRYPTED if bundle else 0
        self.generation = max(bundle.meta) if bundle else 0
        self._hasher = Hasher(bundle.id if bundle else None)

    @property
    def encrypted(self) -> bool:
        return self._bundle is not None

    def id(self, kind: Kind, plain: bytes | bytearray | memoryview) -> ObjectId:
        """Return the id of an object with these plain bytes."""
        return self._hasher.id(kind, plain)

    @property
    def bundle(self) -> Bundle:
        """The keys; only where everything is encrypted."""
        assert self._bundle is not None
        return self._bundle

    def adopt(self, bundle: Bundle) -> None:
        """Seal with the newest of these keys from here on; what older ones sealed stays readable in this process."""
        before = self.bundle
        data, meta = {**before.data, **bundle.data}, {**before.meta, **bundle.meta}
        self._bundle = replace(bundle, data=data, meta=meta)
        self.generation = bundle.generation

    def renew_with(self, renew: Callable[[], Bundle]) -> None:
        """Take up new keys from here on with `renew`: another key opens the repository now."""
        self._renew = renew

    def keep_up(self, generation: int) -> None:
        """Take up the keys of a generation that somebody else began.

        Raises:
            KeyRequired, WrongKey: the key that opened the repository opens the new ones no more.
        """
        if self._bundle is not None and generation > self.generation and self._renew is not None:
            self.adopt(self._renew())

    def sealed_bytes(self, encoded: int) -> int:
        """Return how long a payload of `encoded` bytes is once sealed."""
        return encoded + OVERHEAD if self._bundle else encoded

    def seal(
        self,
        kind: Kind,
        id: ObjectId,
        plain_len: int,
        codecs: bytes,
        encoded: bytes | memoryview,
        out: bytearray | memoryview,
        *,
        depth: int = 0,
        bases: tuple[ObjectId, ...] = (),
        keyframe: bool = False,
    ) -> tuple[Header, bytes | memoryview]:
        """Return header and payload of a record.

        Args:
            encoded: the object's bytes as the codecs left them.
            out: scratch of at least `sealed_bytes(len(encoded))`; the payload lies in it, or is `encoded` itself
                where nothing is encrypted.
        """
        stored = self.sealed_bytes(len(encoded))
        flags = self._flags | FLAG_KEYFRAME * keyframe
        header = Header(kind, flags, self.generation, codecs, stored, plain_len, id, depth, bases, self.repo_id)
        if self._bundle is None:
            return header, encoded
        key = object_key(self._master(kind, self.generation), self._suite, self.repo_id, kind, id)
        used = seal_into(key, self._random(12), header.to_bytes(), encoded, out)
        return header, memoryview(out)[:used]

    def open(
        self, header: Header, payload: memoryview, out: bytearray | memoryview, head: memoryview | None = None
    ) -> memoryview:
        """Return the encoded bytes of a record: in `out`, or `payload` itself where nothing is encrypted.

        Args:
            out: at least `header.stored_len` bytes.
            head: the bytes that `header` was read from, where they are at hand.

        Raises:
            Damaged: the payload does not authenticate, or is not encrypted where everything must be.
            WrongRepository: the record belongs to another repository.
        """
        if header.repo_id != self.repo_id:
            raise WrongRepository(f"object {header.id.short} was stored by another repository")
        if header.flags & ~FLAG_KEYFRAME != self._flags or header.stored_len != len(payload):
            raise IdMismatch(str(header.id), "it is not sealed the way this repository seals")
        if self._bundle is None:
            return payload
        if len(payload) < OVERHEAD:
            raise IdMismatch(str(header.id), "its payload is too short to be sealed")
        kind = Kind(header.kind)
        self.keep_up(header.generation)
        key = object_key(self._master(kind, header.generation), self._suite, self.repo_id, kind, header.id)
        used = open_into(key, payload, header.to_bytes() if head is None else head, out)
        return memoryview(out)[:used]

    def seal_row(self, table: str, key: bytes, seq: int, plain: bytes) -> bytes:
        """Return `plain` sealed as the value of `key` in `table`; `seq` is the log line that put it there."""
        if self._bundle is None:
            return _ROW.pack(0, seq) + plain
        return seal_row(
            self._bundle.meta[self.generation],
            self.generation,
            seq,
            table.encode(),
            key,
            plain,
            self._random(12),
        )

    def open_row(self, table: str, key: bytes, sealed: bytes) -> bytes:
        """Return the plain bytes of a row.

        Raises:
            Damaged: it does not authenticate as the value of this key in this table.
        """
        if self._bundle is not None:
            self.keep_up(row_header(sealed)[0])
            return open_row(self._bundle.meta, table.encode(), key, sealed)[1]
        if len(sealed) < _ROW.size or _ROW.unpack_from(sealed)[0] != 0:
            raise Damaged(f"a row of table {table!r} is sealed, but this repository is not encrypted")
        return sealed[_ROW.size :]

    def seal_line(self, seq: int, previous: bytes, body: bytes) -> Line:
        """Return the log line that carries `body`."""
        if self._bundle is None:
            return Line(0, seq, previous, body)
        key, nonce = _SEQ.pack(seq) + previous, self._random(12)
        master = self._bundle.meta[self.generation]
        sealed = seal_row(master, self.generation, seq, b"log", key, body, nonce, label="log")
        return Line(self.generation, seq, previous, sealed)

    def open_line(self, line: Line) -> bytes:
        """Return the body of a log line.

        Raises:
            Damaged: it does not authenticate at this place of the log.
        """
        if self._bundle is None:
            if line.generation:
                raise Malformed("log", f"line {line.seq} is sealed, but this repository is not encrypted")
            return line.body
        if line.generation == 0:
            raise Malformed("log", f"line {line.seq} is not sealed in an encrypted repository")
        self.keep_up(line.generation)
        key = _SEQ.pack(line.seq) + line.previous
        return open_row(self._bundle.meta, b"log", key, line.body, label="log")[1]

    def ref_key(self, name: str) -> bytes:
        """Return the 32 bytes under which a ref's rows are kept: they show no name."""
        if self._bundle is None:
            return fingerprint("ref", name.encode("utf-8", "surrogatepass"))
        if self._bundle.name is None:
            raise KeyRequired("this key opens no names of refs")
        return ref_key(self._bundle.name, name)

    def _master(self, kind: Kind, generation: int) -> bytes:
        assert self._bundle is not None
        keys: Mapping[int, bytes] = self._bundle.data if kind is Kind.CHUNK else self._bundle.meta
        try:
            return keys[generation]
        except KeyError:
            raise KeyRequired(f"the key at hand opens no {kind.name.lower()} of generation {generation}") from None
