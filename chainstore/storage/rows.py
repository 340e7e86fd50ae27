"""Rows of the index as they are stored: the value, then a checksum over table, key and value.

LMDB has no checksums: a flipped bit in one of its pages reads like data, or like the row of another key.
"""

import struct
import zlib
from collections.abc import Iterable, Mapping

from chainstore.errors import Damaged
from chainstore.model.frame import crc32c, crc32c_of_bytes

TABLES = ("objects", "bases", "packs", "inline", "refs", "reflog", "log", "marks", "config", "meta")
RECENT = "recent"  # beside those, and nobody's but `recent`'s
RECENT_TABLES = ("objects", "bases", "inline")
"""The tables of which rows may stand in a run of table RECENT instead, in this order."""

MAX_KEY_BYTES = 511  # LMDB's
ONE_PAGE_VALUE_BYTES = 4096 - 16 - 4
"""The longest value that takes one overflow page: less LMDB's page header and our checksum.  One more takes two."""

MAX_RUN_BYTES = 1 << 20  # inflated

REBUILD = "`chain verify` shows what is hit; `chain rebuild-index` makes a new index from the log and the packs"

_CHECK = struct.Struct("<I")
_COUNT = struct.Struct("<I")
_LENGTHS = struct.Struct("<HI")  # of a key and of its value
_NAME = {table: table.encode() for table in (*TABLES, RECENT)}


def close_row(table: str, key: bytes, value: bytes) -> bytes:
    """Return what is stored for a row: `value`, then the CRC32C of table | key | value (4 bytes, little endian)."""
    return value + _CHECK.pack(crc32c(_NAME[table] + key + value))


def open_row(table: str, key: bytes, stored: bytes) -> bytes:
    """Return the value of a stored row once its checksum is right.

    Raises:
        Damaged: it is not; names table and key.
    """
    value = stored[: -_CHECK.size]
    if len(stored) < _CHECK.size or stored[len(value) :] != _CHECK.pack(crc32c(_NAME[table] + key + value)):
        raise Damaged(f"row {key.hex()} of table {table} is not what was put there", hint=REBUILD)
    return value


def close_rows(table: str, rows: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return (key, what is stored) of many rows."""
    name, pack, check = _NAME[table], _CHECK.pack, crc32c_of_bytes
    return [(key, value + pack(check(name + key + value))) for key, value in rows]


def open_rows(table: str, rows: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return key -> value of many stored rows once their checksums are right.

    Raises:
        Damaged: one is not; names table and key.
    """
    name, pack, check, size = _NAME[table], _CHECK.pack, crc32c_of_bytes, _CHECK.size
    opened = {}
    for key, stored in rows:
        value = stored[:-size]
        opened[key] = value if stored[-size:] == pack(check(name + key + value)) else open_row(table, key, stored)
    return opened


def write_run(tables: Mapping[str, Mapping[bytes, bytes]]) -> bytes:
    """Return the value that holds rows of RECENT_TABLES: for each table their number, lengths, keys and values.

    Deflated: places that were written together are alike, and two fifths are saved in 0.1 ms.
    """
    parts: list[bytes] = []
    for table in RECENT_TABLES:
        rows = sorted(tables[table].items())
        parts.append(_COUNT.pack(len(rows)))
        parts += [_LENGTHS.pack(len(key), len(value)) for key, value in rows]
        for row in rows:
            parts += row
    return zlib.compress(b"".join(parts), 1)


def read_run(number: bytes, stored: bytes) -> dict[str, dict[bytes, bytes]]:
    """Return the rows of a stored run, once its checksum is right.

    Raises:
        Damaged: it is not, or it holds something else.
    """
    deflated, inflate = open_row(RECENT, number, stored), zlib.decompressobj()
    tables: dict[str, dict[bytes, bytes]] = {}
    try:
        run, at = inflate.decompress(deflated, MAX_RUN_BYTES), 0
        if not inflate.eof or inflate.unused_data:
            raise ValueError("it is no stream, or longer than any is")
        for table in RECENT_TABLES:
            (count,) = _COUNT.unpack_from(run, at)
            at += _COUNT.size
            lengths = list(_LENGTHS.iter_unpack(run[at : at + count * _LENGTHS.size]))
            at += count * _LENGTHS.size
            rows = tables[table] = {}
            for key_len, value_len in lengths:
                middle, end = at + key_len, at + key_len + value_len
                rows[run[at:middle]] = run[middle:end]
                at = end
            if len(rows) != count:
                raise ValueError("fewer rows than it says")
        if at != len(run):
            raise ValueError("bytes behind its rows, or too few")
    except (ValueError, struct.error, zlib.error) as error:
        raise Damaged(f"run {number.hex()} of recent rows is malformed ({error})", hint=REBUILD) from error
    return tables


def successor(prefix: bytes) -> bytes | None:
    """Return the lowest key above every key that begins with `prefix`; None if there is no such key."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else None
