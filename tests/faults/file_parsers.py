"""Parsers of key slots, of the small files, of payloads, and of what people type."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from chainstore.codecs.base import DIFFERENCE, XOR, Against
from chainstore.codecs.chain import Decoder, Encoder, uses_bases
from chainstore.crypto.bundle import Bundle
from chainstore.crypto.keyring import Keyring, new_bundle
from chainstore.crypto.keys import generate_key_file
from chainstore.errors import ChainError, InvalidInput, NotFound
from chainstore.ids import fingerprint
from chainstore.model.frame import (
    crc32c,
)
from chainstore.model.paths import Path as Keys
from chainstore.model.paths import compile_glob, encode_key, format_path, parse_path
from chainstore.model.spec import Spec
from chainstore.model.wire import encode
from chainstore.odb.layout import Format, Layout
from chainstore.repository import Repository
from chainstore.repository import open as open_repository
from tests.faults.mutation import mutated, mutated_json
from tests.faults.parser import REFUSED, Parser
from tests.faults.samples import Samples


def keyring(samples: Samples, folder: Path) -> Parser:
    source = random.Random(1)
    key = generate_key_file(folder / "key", source.randbytes)
    ring = Keyring(3, bytes(16)).with_slot(key, new_bundle(source.randbytes), random=source.randbytes, label="desk")
    more = ring.with_slot(key, new_bundle(source.randbytes).next_generation(source.randbytes), random=source.randbytes)
    bundle = new_bundle(source.randbytes).to_bytes()

    def parse(data: bytes) -> object:
        if data[:8] != b"CSKEYS\r\n":
            found = Bundle.from_bytes(data)
            assert found.to_bytes() == data
            return found
        ring = Keyring.from_bytes(data)
        assert ring.to_bytes() == data
        return ring.describe(), ring.open(key)

    def sign(data: bytes) -> bytes:
        return data[:-32] + fingerprint("keyring", data[:-32]) if data[:8] == b"CSKEYS\r\n" else data

    nasty = sign(ring.to_bytes()[:33] + b"\xff\xff" + ring.to_bytes()[35:])
    refusals = (*REFUSED, *(kind for kind in ChainError.__subclasses__() if kind.code == "denied"))
    return Parser((ring.to_bytes(), more.to_bytes(), bundle, nasty, b"", bytes(67)), parse, 60_000, refusals, sign)


def small_files(samples: Samples, folder: Path) -> Parser:
    layout = Layout(folder)

    def parse(data: bytes) -> object:
        if b"uuid" in data:
            (folder / "index.owner").write_bytes(data)
            return layout.read_owner()
        found = Format.from_bytes(data)
        found.check_extensions(writing=True)
        assert len(found.repo_id) == 16 and 0 < found.chunk_bytes <= 1 << 30
        return found

    def sign(data: bytes) -> bytes:
        try:
            fields = json.loads(data)
            fields.pop("check")
            return json.dumps(
                {**fields, "check": f"{crc32c(json.dumps(fields, sort_keys=True).encode()):08x}"}
            ).encode()
        except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
            return data

    whole = samples.format
    bombs = [whole.replace(b"1048576", digits) for digits in (b"9" * 5000, b"1e999", b"-1", b"true", b'"1"', b"0")]
    bombs += [whole.replace(b"{}", b'{"x": [true, false, false], "y": [false, true, true]}'), b"[" * 100_000]
    return Parser((whole, samples.owner, *bombs), parse, 50_000, sign=sign, changes=(mutated, mutated_json))


def codec(samples: Samples, folder: Path) -> Parser:
    decoder = Decoder()

    def parse(data: bytes) -> object:
        length = int.from_bytes(data[4:8], "little") & 0x7FFFF
        out = memoryview(bytearray(length + 16))
        bases = [memoryview(bytes(length))] * uses_bases(data[:4])
        decoder.decode(data[:4], memoryview(data)[8:], out[8 : 8 + length], bases)
        assert bytes(out[:8]) == bytes(out[8 + length :]) == bytes(8)
        return None

    payloads = []
    for choice in ("fast", "auto", "small"):
        for array in _arrays():
            for spec in (Spec(array.dtype.name, array.shape), None):
                plain = array.data.cast("B")
                near = memoryview(bytes(plain[:-9]) + b"something")
                for ways in [], [Against(XOR, (near,))], [Against(DIFFERENCE, (near,))]:
                    tags, payload, _ = Encoder(choice).encode(plain, spec, ways)
                    payloads.append(tags + array.nbytes.to_bytes(4, "little") + bytes(payload))
    short = [payload for payload in payloads if len(payload) < 1 << 14]
    return Parser((*short, bytes(8), b"\1\0\0\0\0\0\1\0\x48"), parse, 90_000)


def _arrays() -> list[np.ndarray[Any, Any]]:
    chance = np.random.default_rng(1)
    dense = chance.standard_normal(700).astype(np.float32)
    rare = np.where(chance.random(20_000) < 0.01, chance.standard_normal(20_000), 0).astype(np.float32)
    counted = np.arange(3000, dtype=np.int64)
    bytewise = np.where(chance.random(5000) < 0.02, chance.integers(0, 255, 5000), 7).astype(np.uint8)
    return [dense, rare, counted, bytewise, np.zeros(5000, np.float64), (dense * 9).astype(np.float16)]


def path(samples: Samples, folder: Path) -> Parser:
    def parse(data: bytes) -> object:
        text = data.decode("utf-8", "surrogateescape")
        try:
            found = parse_path(text)
        except InvalidInput:
            return compile_glob(text)(("layers", 0, "weight", 1.5, b"x", None))
        assert _name(parse_path(format_path(found))) == _name(found)
        return found

    texts = (
        *(
            "layers/0/weight",
            'optimizer/state/"0"/exp_avg',
            "edges/(1,a)/@indices",
            'b"\\x00a"/1.5/inf/nan:7ff8000000000001',
        ),
        *(
            "**/layer.*/w*",
            "a/*/**/b",
            '"\\u00e9\\n"/True/None',
            "(" * 40 + ")" * 40,
            "9" * 5000,
            "-0x1" + "f" * 5000,
            "//",
        ),
        *("*a" * 300, "**/" * 300 + "x", "'" + "\\'" * 200, '"' + "\\" * 3001, "@'q'/@x", "((1,),(2,(3,)))", "1e400"),
    )
    return Parser(tuple(text.encode() for text in texts), parse, 15_000, (InvalidInput,))


def revision(samples: Samples, folder: Path) -> Parser:
    repo: Repository = open_repository(samples.path, key=samples.key, readonly=True)
    digits = str(repo.resolve("main")).encode()

    def parse(data: bytes) -> object:
        return repo.get_commit(data.decode("utf-8", "surrogateescape"))

    texts = (
        *(
            "main",
            "main~2",
            "HEAD^1",
            "@{1}",
            "main@{2h ago}",
            "latest",
            "step:3",
            "min:loss",
            "max:loss~1",
            "heads/main",
        ),
        *(
            "tags/first",
            "other@{0}^0",
            "step:" + "9" * 5000,
            "HEAD" + "~" * 500,
            "HEAD" + "^0" * 300,
            "@{999999999w}",
            "~",
        ),
        *(
            "@{0.0000001d ago}",
            "main@{" + "9" * 400 + "}",
            "step:٣",
            "min:",
            "HEAD~999999999",
            "a" * 300,
            "\0",
            "../../x",
        ),
    )
    return Parser(
        (*(text.encode() for text in texts), digits, digits[:8] + b"~1"), parse, 10_000, (InvalidInput, NotFound)
    )


def _name(path: Keys) -> bytes:
    return encode([encode_key(key) for key in path])
