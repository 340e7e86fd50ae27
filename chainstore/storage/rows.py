"""Rows of the index as they are stored: the value, then a checksum over table, key and value.

LMDB has no checksums: a flipped bit in one of its pages reads like data, or like the row of another key.
"""

import struct
from collections.abc import Iterable

from chainstore.errors import Damaged
from chainstore.model.frame import crc32c, crc32c_of_bytes

TABLES = ("objects", "bases", "packs", "inline", "refs", "reflog", "log", "marks", "config", "meta")

MAX_KEY_BYTES = 511  # LMDB's
ONE_PAGE_VALUE_BYTES = 4096 - 16 - 4
"""The longest value that takes one overflow page: less LMDB's page header and our checksum.  One more takes two."""

REBUILD = "`chain verify` shows what is hit; `chain rebuild-index` makes a new index from the log and the packs"

_CHECK = struct.Struct("<I")
_NAME = {table: table.encode() for table in TABLES}


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


def successor(prefix: bytes) -> bytes | None:
    """Return the lowest key above every key that begins with `prefix`; None if there is no such key."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else None
