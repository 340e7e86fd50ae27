"""Read an encrypted repository from its log and packs: `python reader.py REPOSITORY KEY_FILE OUT.npz [REF]`.
Made from docs/format.md alone; needs neither package nor index.  Arrays go to OUT.npz, the rest is printed as JSON."""

import json
import struct
import sys
from pathlib import Path

import cbor2
import numpy as np
from blake3 import blake3
from cryptography.hazmat.primitives import hashes, keywrap
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from zstandard import ZstdDecompressor


def crc32c(data):  # section 2
    register = 0xFFFFFFFF
    for bit in np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little").tolist():
        register = register >> 1 ^ (0x82F63B78 & -((register ^ bit) & 1))
    return register ^ 0xFFFFFFFF


def fingerprint(context, *parts):  # section 2
    sized = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    public = blake3(b"", derive_key_context="chainstore 2026 object id v1").digest()
    return blake3(len(context).to_bytes(2, "little") + context + sized, key=public).digest()


class Cursor:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, length):
        self.at += length
        assert self.at <= len(self.data), "something ends too early"
        return self.data[self.at - length : self.at]

    def number(self, width):
        return int.from_bytes(self.take(width), "little")

    def zstd(self, stored, length):
        return ZstdDecompressor(max_window_size=1 << 22).decompress(self.take(stored), max_output_size=length or 1)


def open_keys(root, secret):  # section 5
    at, held = Cursor((root / "keyring").read_bytes()), {}
    assert fingerprint(b"keyring", at.data[:-32]) == at.data[-32:] and at.take(33)[:9] == b"CSKEYS\r\n\x01", "keyring"
    for _ in range(at.number(2)):
        slot, kind, _, _ = at.take(8), at.take(at.number(1)), at.take(at.number(2)), at.take(at.number(2))
        commitment, wrapped = at.take(32), at.take(at.number(2))
        both = HKDF(hashes.SHA256(), 64, None, b"chainstore/v1/slot" + at.data[17:33] + slot).derive(secret)
        if kind == b"file" and both[32:] == commitment:
            bundle = keywrap.aes_key_unwrap_with_padding(both[:32], wrapped)
            held = {(role, g): key for role, g, key in struct.iter_unpack("<BI32s", bundle[1:])}
    assert held, "the key opens no slot"
    return at.data[17:33], held


def read_log(root, held):  # section 14: refs, and packs with their committed lengths
    refs, packs, last = {}, {}, None
    for segment in sorted((root / "log").glob("[0-9]*"), key=lambda path: int(path.name)):
        data, at = segment.read_bytes(), 0
        while at + 64 <= len(data):
            magic, length, generation, seq, previous, check = struct.unpack_from("<8sIIQ32sI", data, at)
            body, after = data[at + 60 : at + 60 + length], at + 60 + length
            whole = magic == b"\x89CSLOG\r\n" and crc32c(data[at : at + 56]) == check
            if not whole or crc32c(body) != int.from_bytes(data[after : after + 4], "little"):
                break  # a torn tail; were it damage, what follows would not fit
            assert last in (None, (seq - 1, previous)), "a line of the log does not follow the one before"
            last, at = (seq, fingerprint(b"log line", data[at : at + 56], body)), after + 4
            both = HKDFExpand(hashes.SHA256(), 64, b"chainstore/v1/log" + body[44:56]).derive(held[4, generation])
            assert both[32:] == body[12:44], "a line is sealed with another key"
            bound = body[:12] + b"\x03\0\0\0log" + seq.to_bytes(8, "big") + previous  # section 6
            for code, *fields in cbor2.loads(AESGCM(both[:32]).decrypt(body[44:56], body[56:], bound))[1]:
                assert code <= 12 and code != 8, "a change is not known here"
                if code == 11:
                    assert fields[0] == fingerprint(b"format", (root / "format").read_bytes()), "format"
                    refs, packs = dict(fields[2]), {pack[0]: pack[1] for pack in fields[6] if not pack[4]}
                elif code in (1, 2):
                    (refs if code == 1 else packs)[fields[0]] = fields[2]
    return refs, packs


class Objects:  # sections 6 to 8
    def __init__(self, root, secret):
        self.repo, self.held = open_keys(root, secret)
        (self.refs, packs), self.places = read_log(root, self.held), {}
        for pack, length in packs.items():
            data, at = (root / "packs" / pack.hex()[:2] / pack.hex()).read_bytes(), 0
            while (at := data.find(b"\x89CSREC\r\n", at, length)) >= 0:  # where records are dead, zeros may stand
                fields = struct.unpack_from("<8sBBHI4sQQ32sBB16s", data, at)
                header = data[at : at + 90 + 32 * fields[10]]
                assert fields[:2] + fields[11:] == (b"\x89CSREC\r\n", 1, self.repo), "no record of this repository"
                assert crc32c(header[:-4]) == int.from_bytes(header[-4:], "little"), "the header of a record is damaged"
                self.places[fields[8]] = fields, header, data[at + len(header) :][: fields[6]]
                at += -(-(len(header) + fields[6] + 4) // 64) * 64

    def read(self, id, kind):
        (_, _, found, flags, generation, tags, _, length, *_), header, payload = self.places[id]
        assert (found, flags & ~2) == (kind, 1), "a record of this kind is not known here"
        bases = [self.read(header[at : at + 32], 3) for at in range(86, len(header) - 4, 32)]
        keys = HKDFExpand(hashes.SHA256(), 32, b"chainstore/v1/obj\x01" + self.repo + bytes([kind]) + id)
        plain = AESGCM(keys.derive(self.held[3 + (kind != 3), generation])).decrypt(payload[:12], payload[12:], header)
        for tag in reversed(tags.rstrip(b"\0")):
            assert tag in (1, 2, 3, 4), "a codec is too new"
            width = plain[0] & 31 if tag == 4 else 1  # of the words that differ: section 9, tags 3 and 4
            plain = Cursor(plain).zstd(len(plain), length) if tag == 2 else Planes(plain).read(length)
            if tag > 2:
                folded, before = (np.frombuffer(part, f"<u{width}", length // width) for part in (plain, *bases))
                after = before + (folded >> 1 ^ -(folded & 1)) if tag == 4 else before ^ folded
                plain = after.tobytes() + plain[folded.nbytes :]
        check = blake3(bytes([kind]) + length.to_bytes(8, "little") + plain, key=self.held[1, 0]).digest()
        assert len(plain) == length and check == id, "an object does not hash to its id"
        return plain

    def extents(self, node):  # section 11: chunk, offset, length
        ids = [node[0][at : at + 32] for at in range(0, len(node[0]), 32)] if node else []
        for page in ids if len(node) == 4 else ():
            yield from self.extents(cbor2.loads(self.read(page, 2))[1])
        if len(node) == 3:
            lengths = [node[1]] * (len(ids) - 1)
            yield from ((id, 0, length) for id, length in zip(ids, [*lengths, node[2] - sum(lengths)], strict=True))
        elif len(node) == 2:
            yield from zip(ids, node[1][::2], node[1][1::2], strict=True)

    def entries(self, page):  # section 11: path, node, spec, bytes
        (code, rows), path = cbor2.loads(self.read(page, 2)), []
        for row in rows if code == 2 else ():
            yield from self.entries(row[0])
        for row in rows if code == 1 else ():
            path = [*path[: row[0]], *row[1]]
            yield path, row[2], row[3], b"".join(self.read(id, 3)[at : at + n] for id, at, n in self.extents(row[4]))


class Planes(Cursor):  # section 9, tag 1
    def read(self, length):
        form = self.number(1)
        count, tail = divmod(length, form & 31)
        where, columns = self.positions(count) if form & 64 else np.arange(count), []
        while len(columns) < form & 31:
            columns += self.stream(len(where))
        words, plain = np.stack(columns, 1), np.zeros((count, form & 31), np.uint8)
        if form & 128:
            top = np.ascontiguousarray(words[:, -2:]).view("<u2")
            words[:, -2:] = (top >> 1 | top << 15).view(np.uint8)
        plain[where] = words
        return plain.tobytes() + self.take(tail)

    def stream(self, count):
        log, method = divmod(self.number(1), 16)
        if method < 3:
            data = self.zstd(self.number(4), count) if method == 2 else self.take((1 if method else count) << log)
            return list(np.broadcast_to(np.frombuffer(data, np.uint8).reshape(-1, 1 << log), (count, 1 << log)).T)
        if method == 3:
            plane, where = np.full(count, self.number(1), np.uint8), self.positions(count)
        else:
            values, pairs = np.frombuffer(self.take(16), np.uint8), self.stream(-(-count // 2))[0]
            digits = np.stack([pairs & 15, pairs >> 4], 1).reshape(-1)[:count]
            plane, where = values[digits], (digits == 15).nonzero()[0]
        plane[where] = self.stream(len(where))[0]
        return [plane]

    def positions(self, count):
        kind, chosen = self.number(1), self.number(4)
        if kind == 0:
            return np.unpackbits(self.stream(-(-count // 8))[0], bitorder="little")[:count].nonzero()[0]
        if kind == 2:
            k, n = self.number(1), self.number(4)
            bits = np.unpackbits(np.frombuffer(self.take(-(-chosen * k // 8) + n), np.uint8), bitorder="little")
            ends, rest = bits[-8 * n :].nonzero()[0], bits[: chosen * k].reshape(chosen, k) @ (1 << np.arange(k))
            return np.cumsum((np.diff(ends, prepend=-1) - 1 << k) + rest + 1) - 1
        gaps = self.stream(self.number(4))[0]
        return np.cumsum(gaps, dtype=np.int64)[gaps < 255] + np.arange(chosen)


def main(repository, key_file, out, ref="HEAD"):
    root, key, arrays, values = Path(repository), Path(key_file).read_bytes(), {}, {}
    objects = Objects(root, key if len(key) == 32 else bytes.fromhex(key.decode()))
    while isinstance(ref, str):
        ref = objects.refs[ref]
    _, tree, _, step, _, _, _, message, *_ = cbor2.loads(objects.read(ref, 1))
    for path, node, spec, data in objects.entries(cbor2.loads(objects.read(tree, 2))[1]):
        name = "/".join(map(str, path))
        assert node[0] in (1, 2, 3, 4, 5, 6, 7, 9, 16, 32), f"entries of code {node[0]} are not known here"
        if node[0] == 1:
            values[name] = cbor2.loads(data)  # a node of section 13
        elif node[0] == 9:
            arrays[name] = arrays["/".join(map(str, node[2]))]
        elif spec:  # section 12, codes 16 and 32
            (dtype, *shape), size = spec, len(data) // max(np.prod(spec[1:], dtype=int), 1) or 1
            strides, shown = [*node, None, None, None, None][3 if node[0] == 32 else 2 :][:2]
            stored = np.ndarray(shape, dtype if hasattr(np, dtype) else f"u{size}", data, 0, strides)
            arrays[name] = np.broadcast_to(stored, shown or shape)
    np.savez(out, **arrays)
    print(json.dumps({"commit": ref, "step": step, "message": message, "values": values}, default=bytes.hex))


main(*sys.argv[1:])
