"""Frames: the bytes around every stored object and every line of the commit log.

A record describes itself: a scanner that has no keys can walk a pack, re-synchronise on MAGIC after damage, and
copy records verbatim.  Nothing else in the package parses these bytes (docs/format.md is normative).

    record   MAGIC 8 | version 1 | kind 1 | flags 2 | generation 4 | codecs 4 | stored_len 8 | plain_len 8 | id 32
             | depth 1 | n_bases 1 | repo id 16 | bases n x 32 | CRC32C 4 || payload | CRC32C 4 | zeros to 64
    line     MAGIC 8 | length 4 | generation 4 | seq 8 | previous 32 | CRC32C 4 || body | CRC32C 4
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import google_crc32c

from chainstore.errors import FormatTooNew, InvalidInput, Malformed
from chainstore.ids import ID_BYTES, Kind, ObjectId, fingerprint

Buffer = bytes | bytearray | memoryview

RECORD_MAGIC = b"\x89CSREC\r\n"
LINE_MAGIC = b"\x89CSLOG\r\n"
VERSION = 1
ALIGNMENT = 64
MAX_BASES = 4
MAX_DEPTH = 64
MAX_PAYLOAD = 1 << 30  # bytes; a chunk is about 1 MiB, so anything near this is damage, not data
MAX_LINE = 1 << 28  # bytes; a checkpoint of a million refs stays below

FLAG_ENCRYPTED = 1
FLAG_KEYFRAME = 2
KIND_CONTENTS = 16  # not an object: the list of headers that closes a full pack

_FIXED = struct.Struct("<8sBBHI4sQQ32sBB16s")
_CRC = struct.Struct("<I")
_LINE = struct.Struct("<8sIIQ32s")
_POSITION = struct.Struct("<Q")
_OBJECT_KINDS = frozenset(map(int, (Kind.COMMIT, Kind.TREE, Kind.CHUNK)))
_LISTED = struct.Struct("<Q" + _FIXED.format.removeprefix("<"))

FIXED_BYTES = _FIXED.size  # what must be read before a header's own length is known
MAX_HEADER_BYTES = _FIXED.size + MAX_BASES * ID_BYTES + _CRC.size
LINE_HEADER_BYTES = _LINE.size + _CRC.size
LINE_OVERHEAD = LINE_HEADER_BYTES + _CRC.size

_PIECE = 1 << 17

crc32c_of_bytes: Callable[[bytes], int] = google_crc32c.value
"""`crc32c` of one `bytes` object, for those who take it a million times."""


def crc32c(*parts: Buffer, after: int = 0) -> int:
    """Return the CRC32C (RFC 3720) of `parts` one after the other, and of what came before them if `after` is that's.

    Cost: google_crc32c takes nothing but `bytes`, so other buffers are copied piece by piece: 46 us for 1 MiB,
    25 of them the copy; pieces keep the copy in the cache.
    """
    value = after
    for part in parts:
        if isinstance(part, bytes):
            value = google_crc32c.extend(value, part)
            continue
        view = memoryview(part).cast("B")
        for start in range(0, len(view), _PIECE):
            value = google_crc32c.extend(value, bytes(view[start : start + _PIECE]))
    return int(value)


@dataclass(frozen=True, slots=True)
class Header:
    """What a record says of itself, in the clear.

    Attributes:
        kind: a `Kind`, or KIND_CONTENTS.
        flags: bit 0 (FLAG_ENCRYPTED): the payload is sealed; bit 1 (FLAG_KEYFRAME): it is a difference to the keyframe
            before it, and what comes next is one to it.
        generation: which data key sealed it (0 in an unencrypted repository).
        codecs: up to four codec tags in order of application, zero padded.
        stored_len, plain_len: bytes of payload, bytes of the object.
        id: the object.
        depth, bases: length of the longest line of bases below it, and the bases themselves.
        repo_id: 16 bytes; keeps a pack that was stored as a file from injecting records.
    """

    kind: int
    flags: int
    generation: int
    codecs: bytes
    stored_len: int
    plain_len: int
    id: ObjectId
    depth: int
    bases: tuple[ObjectId, ...]
    repo_id: bytes

    def to_bytes(self) -> bytes:
        """Return the header with its checksum: FIXED_BYTES + 32 a base + 4 bytes."""
        head = _FIXED.pack(
            RECORD_MAGIC,
            VERSION,
            self.kind,
            self.flags,
            self.generation,
            self.codecs,
            self.stored_len,
            self.plain_len,
            self.id,
            self.depth,
            len(self.bases),
            self.repo_id,
        )
        head += b"".join(self.bases)
        return head + _CRC.pack(crc32c(head))

    @property
    def header_bytes(self) -> int:
        """Bytes of the header alone."""
        return FIXED_BYTES + len(self.bases) * ID_BYTES + _CRC.size

    @property
    def record_bytes(self) -> int:
        """Bytes the whole record takes in a pack, padding included."""
        return padded(self.header_bytes + self.stored_len + _CRC.size)


def padded(length: int) -> int:
    """Return `length` rounded up to ALIGNMENT."""
    return -(-length // ALIGNMENT) * ALIGNMENT


def parse_header(data: Buffer, what: str, offset: int = 0) -> Header:
    """Return the header at the start of `data`.

    Args:
        data: at least the header's bytes; MAX_HEADER_BYTES always suffice.
        what, offset: name the place in errors.

    Raises:
        Malformed: these bytes are not a header.
        FormatTooNew: a record version that we do not know.
    """
    if len(data) < FIXED_BYTES + _CRC.size:
        raise Malformed(what, "cut off inside a record header", offset)
    fields = _FIXED.unpack_from(data)
    magic, version, kind, flags, generation, codecs, stored, plain, object_id, depth, n_bases, repo_id = fields
    if magic != RECORD_MAGIC:
        raise Malformed(what, "no record starts here", offset)
    if n_bases > MAX_BASES or len(data) < FIXED_BYTES + n_bases * ID_BYTES + _CRC.size:
        raise Malformed(what, f"a record header with {n_bases} bases", offset)
    end = FIXED_BYTES + n_bases * ID_BYTES
    if _CRC.unpack_from(data, end)[0] != crc32c_of_bytes(bytes(data[:end])):
        raise Malformed(what, "header checksum", offset)
    if version != VERSION:
        raise FormatTooNew(f"record version {version}", "read")
    if stored > MAX_PAYLOAD or plain > MAX_PAYLOAD or depth > MAX_DEPTH:
        raise Malformed(what, f"a record of {stored} bytes, depth {depth}", offset)
    bases = tuple(ObjectId(data[FIXED_BYTES + i * ID_BYTES : FIXED_BYTES + (i + 1) * ID_BYTES]) for i in range(n_bases))
    return Header(
        kind, flags, generation, bytes(codecs), stored, plain, ObjectId(object_id), depth, bases, bytes(repo_id)
    )


def frame_record(header: Header, payload: Buffer) -> list[Buffer]:
    """Return a record as buffers to be written one after the other; `payload` is not copied."""
    used = header.header_bytes + len(payload) + _CRC.size
    return [header.to_bytes(), payload, _CRC.pack(crc32c(payload)) + bytes(padded(used) - used)]


def split_record(data: memoryview, what: str, offset: int = 0) -> tuple[Header, memoryview]:
    """Return header and payload of the record that `data` starts with, both checksums verified.

    Raises:
        Malformed: a checksum fails, `data` is too short, or there is something in the padding.
    """
    header = parse_header(data[:MAX_HEADER_BYTES], what, offset)
    end = header.header_bytes + header.stored_len
    if len(data) < end + _CRC.size:
        raise Malformed(what, "cut off inside a record", offset)
    payload = data[header.header_bytes : end]
    if _CRC.unpack_from(data, end)[0] != crc32c(payload):
        raise Malformed(what, "payload checksum", offset)
    if any(data[end + _CRC.size : header.record_bytes]):
        raise Malformed(what, "bytes where padding belongs", offset)
    return header, payload


def contents_record(records: Iterable[tuple[int, Header]], repo_id: bytes) -> list[Buffer]:
    """Return the record that closes a full pack: (offset, header) of each record in it, in the clear.

    Args:
        records: in order of offset; one after the other, for there may be millions.
        repo_id: 16 bytes.
    """
    payload = bytearray()
    for offset, header in records:
        payload += _POSITION.pack(offset)
        payload += header.to_bytes()
    identity = ObjectId(fingerprint("pack contents", memoryview(payload)))
    header = Header(KIND_CONTENTS, 0, 0, bytes(4), len(payload), len(payload), identity, 0, (), repo_id)
    return frame_record(header, payload)


def parse_contents(payload: memoryview, what: str) -> Iterator[tuple[int, Header]]:
    """Yield (offset, header) of each record that a pack's closing record lists."""
    position = 0
    while position < len(payload):
        if len(payload) - position < _POSITION.size:
            raise Malformed(what, "cut off inside its contents", position)
        (offset,) = _POSITION.unpack_from(payload, position)
        position += _POSITION.size
        header = parse_header(payload[position : position + MAX_HEADER_BYTES], what, position)
        yield offset, header
        position += header.header_bytes


Listed = tuple[int, int, int, int, int, int, bytes, int, bytes]
"""A record as the closing record of its pack lists it: offset and bytes in the pack, kind, flags, generation, bytes of
the object, its id, depth, and the ids of its bases one after the other.  Plain, since there may be millions."""


def list_contents(payload: bytes, what: str, repo_id: bytes) -> list[Listed]:
    """Return the objects of a repository that a pack's closing record lists, for an index.

    As `parse_contents`, but faster: the caller has verified the checksum of the whole payload, so those of the headers
    are left alone.

    Raises:
        Malformed: it is cut off inside a header, or holds something else.
        FormatTooNew: a record version that we do not know.
    """
    found: list[Listed] = []
    add, fixed, head_bytes = found.append, _LISTED.unpack_from, _LISTED.size
    position, least = 0, len(payload) - head_bytes - _CRC.size
    while position <= least:
        offset, magic, version, kind, flags, generation, _, stored, plain, id, depth, n_bases, repo = fixed(
            payload, position
        )
        if magic != RECORD_MAGIC or n_bases > MAX_BASES or max(stored, plain) > MAX_PAYLOAD or depth > MAX_DEPTH:
            raise Malformed(what, "no record header in its contents", position)
        if version != VERSION:
            raise FormatTooNew(f"record version {version}", "read")
        position += head_bytes
        bases_end = position + n_bases * ID_BYTES
        if repo == repo_id and kind in _OBJECT_KINDS:
            # `padded`, spelt out
            nbytes = -(-(FIXED_BYTES + bases_end - position + stored + 2 * _CRC.size) // ALIGNMENT) * ALIGNMENT
            add((offset, nbytes, kind, flags, generation, plain, id, depth, payload[position:bases_end]))
        position = bases_end + _CRC.size
    if position != len(payload):
        raise Malformed(what, "cut off inside its contents", position)
    return found


def as_listed(offset: int, header: Header) -> Listed:
    """Return a record as a closing record would list it."""
    return (
        offset,
        header.record_bytes,
        header.kind,
        header.flags,
        header.generation,
        header.plain_len,
        bytes(header.id),
        header.depth,
        b"".join(header.bases),
    )


@dataclass(frozen=True, slots=True)
class Line:
    """One record of the commit log.

    Attributes:
        generation: the key that sealed the body (0: not sealed).
        seq: 1 for the first line of a repository, then one more each.
        previous: hash of the line before it (32 zero bytes for the first).
        body: sealed changes.
    """

    generation: int
    seq: int
    previous: bytes
    body: bytes

    def to_bytes(self) -> bytes:
        """Return the framed line; LINE_OVERHEAD + len(body) bytes.

        Raises:
            InvalidInput: its body is longer than a line may be.
        """
        if len(self.body) > MAX_LINE:
            raise InvalidInput(f"{len(self.body)} bytes are more than a line of the log may hold")
        head = _LINE.pack(LINE_MAGIC, len(self.body), self.generation, self.seq, self.previous)
        return head + _CRC.pack(crc32c(head)) + self.body + _CRC.pack(crc32c(self.body))

    @property
    def hash(self) -> bytes:
        """32 bytes that name this line and, through `previous`, every line before it."""
        return fingerprint(
            "log line", _LINE.pack(LINE_MAGIC, len(self.body), self.generation, self.seq, self.previous), self.body
        )

    @property
    def line_bytes(self) -> int:
        """Bytes of the framed line."""
        return LINE_OVERHEAD + len(self.body)


def line_bytes(head: memoryview) -> int:
    """Return how many bytes the line takes that starts with `head`, as its header says; 0 where that is none."""
    if len(head) < _LINE.size or head[: len(LINE_MAGIC)] != LINE_MAGIC:
        return 0
    return LINE_OVERHEAD + int(_LINE.unpack_from(head)[1])


def line_generation(data: bytes) -> int:
    """Return the key generation that a whole line says it was sealed with, which nothing proves; 0 of no line."""
    return int.from_bytes(data[12:16], "little")


def parse_line(data: memoryview, what: str, offset: int = 0) -> Line:
    """Return the line that `data` starts with.

    Raises:
        Malformed: these bytes are not a whole line; whether it is torn or rotten, the log decides.
    """
    if len(data) < LINE_OVERHEAD:
        raise Malformed(what, "cut off inside a line", offset)
    magic, length, generation, seq, previous = _LINE.unpack_from(data)
    if magic != LINE_MAGIC:
        raise Malformed(what, "no line starts here", offset)
    if _CRC.unpack_from(data, _LINE.size)[0] != crc32c(data[: _LINE.size]):
        raise Malformed(what, "line header checksum", offset)
    if length > MAX_LINE or len(data) < LINE_OVERHEAD + length:
        raise Malformed(what, "cut off inside a line", offset)
    body = data[LINE_HEADER_BYTES : LINE_HEADER_BYTES + length]
    if _CRC.unpack_from(data, LINE_HEADER_BYTES + length)[0] != crc32c(body):
        raise Malformed(what, "line checksum", offset)
    return Line(generation, seq, bytes(previous), bytes(body))


def is_record_kind(kind: int) -> bool:
    """Whether `kind` is one of the three object kinds."""
    return kind in (Kind.COMMIT, Kind.TREE, Kind.CHUNK)
