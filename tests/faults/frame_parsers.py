"""Parsers of records, packs and lines of the log, whose checksums are made right again after a change."""

import struct
from pathlib import Path

from chainstore.model.frame import (
    FIXED_BYTES,
    LINE_HEADER_BYTES,
    LINE_MAGIC,
    RECORD_MAGIC,
    crc32c,
    line_bytes,
    parse_contents,
    parse_header,
    parse_line,
    split_record,
)
from chainstore.storage import fs
from chainstore.storage.log import BEGINNING, Log
from chainstore.storage.pack import salvage, scan
from tests.faults.parser import Parser
from tests.faults.samples import Samples

_CRC = struct.Struct("<I")


def record(samples: Samples, folder: Path) -> Parser:
    def parse(data: bytes) -> object:
        header = parse_header(data, "sample")
        assert header.to_bytes() == data[: header.header_bytes]
        _, payload = split_record(memoryview(data), "sample")
        return list(parse_contents(payload, "sample")) if header.kind == 16 else payload

    def sign(data: bytes) -> bytes:
        return _signed_record(bytearray(data), 0, payload=True)

    bomb = bytearray(samples.records[0])
    bomb[20:36] = struct.pack("<QQ", 1 << 30, 1 << 30)
    return Parser((*samples.records, samples.contents, sign(bytes(bomb)), b"", RECORD_MAGIC), parse, 140_000, sign=sign)


def pack(samples: Samples, folder: Path) -> Parser:
    path = folder / "pack"
    path.touch()
    file = fs.open_file(path)

    def parse(data: bytes) -> object:
        path.write_bytes(data)
        intact = list(salvage(file, 0, len(data), "sample"))
        assert all(0 <= offset < offset + header.record_bytes <= len(data) for offset, header in intact)
        whole = list(scan(file, 0, len(data), "sample"))
        assert whole == intact
        return whole

    def sign(data: bytes) -> bytes:
        signed = bytearray(data)
        for offset in range(0, len(data), 64):
            if data.startswith(RECORD_MAGIC, offset):
                signed[:] = _signed_record(signed, offset, payload=False)
        return bytes(signed)

    return Parser((*samples.packs, RECORD_MAGIC * 500, b""), parse, 12_000, sign=sign)


def line(samples: Samples, folder: Path) -> Parser:
    log = Log(folder / "log")
    log.path(1).parent.mkdir()

    def parse(data: bytes) -> object:
        log.path(1).write_bytes(data)
        lines = list(log.after(BEGINNING))
        view, at = memoryview(data), 0
        for position, found in lines:
            assert (position.start, found.to_bytes()) == (at, data[at : position.end])
            assert line_bytes(view[at:]) == found.line_bytes and parse_line(view[at:], "sample") == found
            at = position.end
        return parse_line(view[at:], "sample") if at < len(data) else lines

    def sign(data: bytes) -> bytes:
        signed, at = bytearray(data), data.find(LINE_MAGIC)
        while 0 <= at <= len(data) - LINE_HEADER_BYTES:
            _put_check(signed, at, LINE_HEADER_BYTES - 4)
            length = int.from_bytes(data[at + 8 : at + 12], "little")
            _put_check(signed, at + LINE_HEADER_BYTES, length)
            at = data.find(LINE_MAGIC, at + 1)
        return bytes(signed)

    whole = samples.log
    return Parser((whole, whole[: line_bytes(memoryview(whole))], LINE_MAGIC * 50, b""), parse, 15_000, sign=sign)


def _signed_record(data: bytearray, at: int, *, payload: bool) -> bytes:
    if len(data) >= at + FIXED_BYTES:
        head = FIXED_BYTES + 32 * data[at + FIXED_BYTES - 17]
        _put_check(data, at, head)
        if payload:
            _put_check(data, at + head + 4, int.from_bytes(data[at + 20 : at + 28], "little"))
    return bytes(data)


def _put_check(data: bytearray, at: int, length: int) -> None:
    if at + length + 4 <= len(data):
        data[at + length : at + length + 4] = _CRC.pack(crc32c(bytes(data[at : at + length])))
