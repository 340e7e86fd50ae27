"""docs/format.md is enough: a reader made from it alone, without the package, opens an encrypted repository.

Nothing of chainstore is used but to write what is read here.  Where a test fails, the document or the code is wrong.
"""

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cbor2
import google_crc32c
import lmdb
import numpy as np
import pytest
import zstandard
from blake3 import blake3
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from cryptography.hazmat.primitives.keywrap import aes_key_unwrap_with_padding

import chainstore as cs
from chainstore.codecs.base import Against
from chainstore.codecs.chain import Encoder
from chainstore.ids import ObjectId
from chainstore.model.spec import Spec
from chainstore.model.tree import Entry, write_tree

PUBLIC = blake3(b"", derive_key_context="chainstore 2026 object id v1").digest()
WEIGHT = np.arange(6000, dtype=np.float32)


def fingerprint(context: bytes, *parts: bytes, key: bytes = PUBLIC) -> bytes:
    """Section 2."""
    sized = [len(context).to_bytes(2, "little"), context]
    for part in parts:
        sized += [len(part).to_bytes(8, "little"), part]
    return blake3(b"".join(sized), key=key).digest()


def checked(data: bytes) -> bytes:
    """Return `data` without the CRC32C that ends it, once that is right."""
    assert google_crc32c.value(data[:-4]) == int.from_bytes(data[-4:], "little")
    return data[:-4]


def recent_rows(number: int, row: tuple[bytes, bytes]) -> dict[tuple[bytes, bytes], bytes]:
    """Section 15, recent rows."""
    key, stored = row
    assert key == number.to_bytes(8, "big")
    assert google_crc32c.value(b"recent" + key + stored[:-4]) == int.from_bytes(stored[-4:], "little")
    run, at, rows = zlib.decompress(stored[:-4]), 0, {}
    for table in (b"objects", b"bases", b"inline"):
        (count,) = struct.unpack_from("<I", run, at)
        lengths = list(struct.iter_unpack("<HI", run[at + 4 : at + 4 + 6 * count]))
        at += 4 + 6 * count
        for key_len, value_len in lengths:
            rows[table, run[at : at + key_len]] = run[at + key_len : at + key_len + value_len]
            at += key_len + value_len
    assert at == len(run)
    return rows


@dataclass(frozen=True)
class Keys:
    """A bundle: role and generation to key."""

    repo: bytes
    held: dict[tuple[int, int], bytes]

    def open_object(self, header: bytes, kind: int, id: bytes, generation: int, payload: bytes) -> bytes:
        """Section 6, objects."""
        info = b"chainstore/v1/obj" + b"\x01" + self.repo + bytes([kind]) + id
        key = HKDFExpand(SHA256(), 32, info).derive(self.held[3 if kind == 3 else 4, generation])
        return AESGCM(key).decrypt(payload[:12], payload[12:], header)

    def open_row(self, label: bytes, table: bytes, key: bytes, sealed: bytes) -> bytes:
        """Section 6, rows and bodies of log lines."""
        head, commitment, nonce = sealed[:12], sealed[12:44], sealed[44:56]
        info = b"chainstore/v1/" + label + nonce
        both = HKDFExpand(SHA256(), 64, info).derive(self.held[4, int.from_bytes(head[:4], "little")])
        assert both[32:] == commitment
        return AESGCM(both[:32]).decrypt(nonce, sealed[56:], head + len(table).to_bytes(4, "little") + table + key)

    def id(self, kind: int, plain: bytes) -> bytes:
        return blake3(bytes([kind]) + len(plain).to_bytes(8, "little") + plain, key=self.held[1, 0]).digest()


@dataclass(frozen=True)
class Repository:
    root: Path
    key: bytes

    def keys(self) -> Keys:
        """Section 5."""
        data = (self.root / "keyring").read_bytes()
        assert data == (self.root / "keyring.bak").read_bytes()
        assert fingerprint(b"keyring", data[:-32]) == data[-32:]
        magic, version, number, repo, slots = struct.unpack_from("<8sBQ16sH", data)
        assert (magic, version, number, slots) == (b"CSKEYS\r\n", 1, 1, 1)
        at = 35
        slot, at = data[at : at + 8], at + 8
        kind, at = data[at + 1 : at + 1 + data[at]], at + 1 + data[at]
        assert kind == b"file"
        parts = []
        for sized in (True, True, False, True):  # label, stored, commitment, wrapped
            length = int.from_bytes(data[at : at + 2], "little") if sized else 32
            at += 2 * sized
            parts.append(data[at : at + length])
            at += length
        assert at == len(data) - 32
        _, stored, commitment, wrapped = parts
        both = HKDF(SHA256(), 64, None, b"chainstore/v1/slot" + repo + slot).derive(self.key)
        assert stored == b"" and both[32:] == commitment
        bundle = aes_key_unwrap_with_padding(both[:32], wrapped)
        assert bundle[0] == 1
        return Keys(repo, {(role, g): key for role, g, key in struct.iter_unpack("<BI32s", bundle[1:])})

    def lines(self, keys: Keys) -> Iterator[list]:
        """Yield the changes of every line of the log; section 14."""
        data, at, previous = (self.root / "log" / "00000001").read_bytes(), 0, bytes(32)
        for expected in range(1, 1 << 30):
            if at == len(data):
                return
            magic, length, generation, seq, before = struct.unpack_from("<8sIIQ32s", data, at)
            assert magic == b"\x89CSLOG\r\n" and (seq, before, generation) == (expected, previous, 1)
            head, body = checked(data[at : at + 60]), checked(data[at + 60 : at + 64 + length])
            plain = keys.open_row(b"log", b"log", seq.to_bytes(8, "big") + before, body)
            yield cbor2.loads(plain)[1]
            previous = fingerprint(b"log line", head, body)
            at += 64 + length

    def objects(self, keys: Keys, pack: bytes, start: int, stop: int) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield kind, id and plaintext of the objects that are stored as they are; sections 7 and 8."""
        data = (self.root / "packs" / pack.hex()[:2] / pack.hex()).read_bytes()
        while start < stop:
            fields = struct.unpack_from("<8sBBHI4sQQ32sBB16s", data, start)
            magic, version, kind, flags, generation, codecs, stored, plain_len, id, depth, n_bases, repo = fields
            assert (magic, version, flags, depth, n_bases, repo) == (b"\x89CSREC\r\n", 1, 1, 0, 0, keys.repo)
            checked(header := data[start : start + 90])
            payload = checked(data[start + 90 : start + 94 + stored])
            plain = keys.open_object(header, kind, id, generation, payload)
            if codecs == bytes(4):
                assert len(plain) == plain_len and keys.id(kind, plain) == id
                yield kind, id, plain
            start += -(-(94 + stored) // 64) * 64

    def row(self, table: bytes, key: bytes) -> bytes:
        """Section 15."""
        owner = json.loads((self.root / "index.owner").read_text())
        with lmdb.open(str(self.root / "index" / owner["uuid"]), readonly=True, max_dbs=11, lib_version=0) as env:
            opened, recent = env.open_db(table, create=False), env.open_db(b"recent", create=False)
            with env.begin() as transaction:
                stored = transaction.get(key, db=opened)
                runs = list(transaction.cursor(db=recent))
        found = [rows[table, key] for rows in map(recent_rows, range(1, len(runs) + 1), runs) if (table, key) in rows]
        if found:
            assert stored is None and len(found) == 1
            return found[0]
        assert google_crc32c.value(table + key + stored[:-4]) == int.from_bytes(stored[-4:], "little")
        return stored[:-4]


@pytest.fixture
def written(tmp_path: Path) -> tuple[Repository, str]:
    """A repository with one commit, closed, and that commit's id."""
    key_file = tmp_path / "key"
    key_file.write_text("1f" * 32)
    with cs.init(tmp_path / "repository", key=cs.KeyFile(key_file), codec="none") as repo:
        commit = repo.commit({"weight": WEIGHT, "lr": 0.5}, "first", step=3)
    return Repository(tmp_path / "repository", bytes.fromhex("1f" * 32)), str(commit.id)


def test_a_reader_made_from_the_document_finds_the_commit_and_its_array(written: tuple[Repository, str]):
    repository, commit = written
    keys = repository.keys()
    (checkpoint,), (grown, moved) = repository.lines(keys)
    assert checkpoint[0] == 11 and checkpoint[1] == fingerprint(b"format", (repository.root / "format").read_bytes())
    assert moved == [1, "heads/main", None, bytes.fromhex(commit), "commit: first"]
    chunks = [plain for kind, _, plain in repository.objects(keys, *grown[1:4]) if kind == 3]
    assert WEIGHT.tobytes() in chunks
    assert cbor2.dumps([1, struct.pack("<d", 0.5)]) in chunks  # the plain value 0.5


def test_a_reader_made_from_the_document_finds_a_ref_in_the_index(written: tuple[Repository, str]):
    repository, commit = written
    keys = repository.keys()
    key = fingerprint(b"ref", b"heads/main", key=keys.held[2, 0])
    plain = keys.open_row(b"row", b"refs", key, repository.row(b"refs", key))
    assert cbor2.loads(plain) == ["heads/main", bytes.fromhex(commit), 1, 2]


def test_a_reader_made_from_the_document_finds_where_an_object_lies(written: tuple[Repository, str]):
    repository, commit = written
    place = struct.unpack("<IQQQIHBBB", repository.row(b"objects", bytes.fromhex(commit)))
    number, offset, length, _, generation, flags, kind, _, _ = place
    assert (generation, flags, kind) == (1, 1, 1)
    name, committed, contents, retired = struct.unpack_from(
        "<16sQQB", repository.row(b"packs", number.to_bytes(4, "big"))
    )
    assert contents == retired == 0 and offset + length <= committed
    pack = (repository.root / "packs" / name.hex()[:2] / name.hex()).read_bytes()
    assert len(pack) == committed and pack[offset : offset + length][36:68].hex() == commit
    assert repository.row(b"inline", bytes.fromhex(commit)) == pack[offset : offset + length]


def test_the_check_of_the_format_file_is_what_the_document_says(written: tuple[Repository, str]):
    fields = json.loads((written[0].root / "format").read_text())
    check = fields.pop("check")
    assert int(check, 16) == google_crc32c.value(json.dumps(fields, sort_keys=True).encode("ascii"))
    assert list(fields) == ["chainstore", "repo", "suite", "chunk", "extensions"] and fields["suite"] == 1


class Planes:
    """A payload of tag 1, read as section 9 says."""

    def __init__(self, payload: bytes, plain_len: int) -> None:
        self.payload, self.at, self.plain_len = payload, 0, plain_len

    def take(self, length: int) -> bytes:
        self.at += length
        assert self.at <= len(self.payload)
        return self.payload[self.at - length : self.at]

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

    def read(self) -> bytes:
        form = self.number(1)
        width = form & 0x1F
        count, tail = divmod(self.plain_len, width)
        where = self.positions(count) if form & 0x40 else list(range(count))
        columns: list[bytes] = []  # byte k of every word
        while len(columns) < width:
            columns += self.stream(len(where))
        words = [bytearray(column[i] for column in columns) for i in range(len(where))]
        for word in words if form & 0x80 else ():
            top = int.from_bytes(word[-2:], "little")
            word[-2:] = (top >> 1 | (top & 1) << 15).to_bytes(2, "little")
        plain = [bytes(width)] * count
        for place, word in zip(where, words, strict=True):
            plain[place] = bytes(word)
        rest = self.take(tail)
        assert self.at == len(self.payload)
        return b"".join(plain) + rest

    def stream(self, count: int) -> list[bytes]:
        """Return the bytes of a field's values, one string for each byte of the field."""
        log_width, method = divmod(self.number(1), 16)
        width = 1 << log_width
        if method == 0:
            raw = self.take(count * width)
            return [raw[k::width] for k in range(width)]
        if method == 1:
            return [bytes([byte]) * count for byte in self.take(width)]
        if method == 2:
            frame = self.take(self.number(4))
            return [zstandard.ZstdDecompressor().decompress(frame, max_output_size=count)]
        assert method == 3
        plane = bytearray(self.take(1) * count)
        where = self.positions(count)
        for place, byte in zip(where, self.stream(len(where))[0], strict=True):
            plane[place] = byte
        return [bytes(plane)]

    def positions(self, count: int) -> list[int]:
        kind, chosen = self.number(1), self.number(4)
        if kind == 0:
            (mask,) = self.stream(-(-count // 8))
            found = [i for i in range(count) if mask[i // 8] >> i % 8 & 1]
        elif kind == 2:
            k, length = self.number(1), self.number(4)
            low = int.from_bytes(self.take(-(-chosen * k // 8)), "little")
            above = int.from_bytes(self.take(length), "little")
            found, place = [], 0
            for _ in range(chosen):
                zeros = (above & -above).bit_length() - 1
                place += zeros << k | low % (1 << k)
                found.append(place)
                place, low, above = place + 1, low >> k, above >> zeros + 1
            assert not low and not above
        else:
            (gaps,) = self.stream(self.number(4))
            found, place = [], 0
            for gap in gaps:
                place += gap
                if gap < 255:
                    found.append(place)
                    place += 1
        assert len(found) == chosen
        return found


def arrays() -> dict[str, np.ndarray]:
    chance = np.random.default_rng(1)
    dense = chance.standard_normal(5000).astype(np.float32)
    rare = np.where(chance.random(5000) < 0.01, dense, np.float32(0))
    return {
        "dense": dense,
        "half zero": np.where(chance.random(5000) < 0.5, dense, np.float32(0)),
        "rarely not zero": rare,
        "double": dense.astype(np.float64),
        "bfloat16 bits": (dense.view(np.uint32) >> 16).astype(np.uint16),
        "counted": np.arange(5000, dtype=np.int64),
        "mostly one byte": np.where(chance.random(5000) < 0.02, chance.integers(0, 255, 5000), 7).astype(np.uint8),
        "zeros": np.zeros(5000, np.float32),
    }


@pytest.mark.parametrize("choice", ["fast", "auto", "small"])
@pytest.mark.parametrize("name", arrays())
def test_planes_are_read_as_the_document_says(name: str, choice: str):
    array = arrays()[name]
    dtype = "bfloat16" if name == "bfloat16 bits" else array.dtype.name
    for data in (array.tobytes(), array.tobytes()[:-3]):
        tags, payload, _ = Encoder(choice).encode(memoryview(data), Spec(dtype, array.shape))
        if tags == b"\x01\0\0\0":
            assert Planes(bytes(payload), len(data)).read() == data
        else:
            assert tags == bytes(4) and bytes(payload) == data


def unfolded(residual: bytes, base: bytes, width: int) -> bytes:
    """Section 9, tag 4."""
    plain = b""
    for at in range(0, len(base) // width * width, width):
        r, before = (int.from_bytes(part[at : at + width], "little") for part in (residual, base))
        plain += ((before + (-(r + 1) // 2 if r % 2 else r // 2)) % 256**width).to_bytes(width, "little")
    return plain + residual[len(plain) :]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "complex64", "uint8", "raw3", "raw12"])
def test_residuals_are_read_as_the_document_says(dtype: str):
    chance = np.random.default_rng(2)
    base = chance.bytes(6007)
    moved = np.frombuffer(base, np.uint8) + np.where(chance.random(6007) < 0.05, chance.integers(-3, 4, 6007), 0)
    data = moved.astype(np.uint8).tobytes()
    for tag in (3, 4):
        coded = Encoder("auto").encode(memoryview(data), Spec(dtype, (1,)), [Against(tag, (memoryview(base),))])
        assert coded.tags == bytes((tag, 0, 0, 0)) and coded.against is not None
        payload = bytes(coded.payload)
        residual = Planes(payload, len(data)).read()
        if tag == 3:
            assert bytes(a ^ b for a, b in zip(residual, base, strict=True)) == data
        else:
            assert unfolded(residual, base, payload[0] & 0x1F) == data


def name_of(path: tuple[str, ...]) -> bytes:
    return cbor2.dumps(list(path))


def cut(rows: list[tuple[bytes, int]], level: int) -> list[int]:
    """Return how many rows each page of a level has, as section 11 says; rows are (name that may end it, cost)."""
    pages, size, count = [], 0, 0
    for name, cost in rows:
        if count > (level > 0) and size + cost > 65536:
            pages.append(count)
            size = count = 0
        size, count = size + cost, count + 1
        ends = google_crc32c.value(bytes([level]) + name) % 64 == 0
        if ends and count > (level > 0):
            pages.append(count)
            size = count = 0
    return [*pages, count] if count else pages


def test_pages_end_where_the_document_says():
    entries = [
        Entry((f"layer.{i}", "weight" if i % 2 else "x" * (i % 900)), [32], Spec("float32", (4, i)), ())
        for i in range(20_000)
    ]
    kept: dict[ObjectId, list] = {}

    def keep(page: bytes) -> ObjectId:
        assert len(page) <= 65536
        id = ObjectId(blake3(page).digest())
        kept[id] = cbor2.loads(page)
        return id

    top = write_tree(entries, keep)
    assert top is not None
    leaves = [rows for code, rows in kept.values() if code == 1]
    costs = [(name_of(e.path), 64 + len(name_of(e.path)) + len(cbor2.dumps(e.node)) + 9 * 2) for e in entries]
    assert [len(rows) for rows in leaves] == cut(costs, 0)
    firsts = [(name_of(tuple(rows[0][1])), 64 + len(name_of(shared_by(rows)))) for rows in leaves]
    sizes = cut(firsts, 1)
    assert len(sizes) > 1, "more than one level is to be seen"
    indexes = [rows for code, rows in kept.values() if code == 2]
    assert [len(rows) for rows in indexes[: len([size for size in sizes if size > 1])]] == [s for s in sizes if s > 1]
    assert sum(row[1] for row in kept[top][1]) == len(entries)


def shared_by(rows: list) -> tuple[str, ...]:
    """Return the keys that all paths of a leaf page have in common; here a page of one row, or none."""
    return tuple(rows[0][1]) if len(rows) == 1 else ()
