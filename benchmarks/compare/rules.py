"""Rules: what others would keep of a chain of states, computed here on the same arrays.

Each is the best that its kind can do: no file format, no names, no encryption, no values beside the arrays.  What is
kept is decoded and compared before it counts.

    dedupe + zstd-3    chunks that are new anywhere in the chain, each compressed: backup programs
    BitX rule          exclusive or with the parent, bytes apart, zstd-3: what is published for families of models
    zipnn, z4ai        where they are installed (requirements.txt here says which versions)
"""

import hashlib
import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import zstandard
from numpy.typing import NDArray

from benchmarks.workloads import State, flat

CHUNK = 1 << 20
SMALL = 64 << 10  # arrays below it lie one after another, as in a file
LEVEL = 3
Bytes = NDArray[np.uint8]


class Array(NamedTuple):
    """Bytes of one array, or of all small ones of one dtype."""

    data: Bytes
    dtype: str
    itemsize: int


class Kept(NamedTuple):
    """What was kept of some bytes, and how they come back."""

    stored: int
    back: Callable[[], bytes]
    data: Bytes


Arrays = Mapping[str, Array]


def arrays(state: State) -> Arrays:
    """Return the arrays of a state; large ones are views of it."""
    found: dict[str, Array] = {}
    small: dict[str, list[Array]] = {}
    for name, tensor in flat(state).items():
        data: Bytes = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        array = Array(data, str(tensor.dtype).removeprefix("torch."), tensor.element_size())
        if data.nbytes < SMALL:
            small.setdefault(array.dtype, []).append(array)
        else:
            found[name] = array
    for dtype, parts in small.items():
        found[f"small {dtype}"] = parts[0]._replace(data=np.concatenate([part.data for part in parts]))
    return found


def pairs(now: Arrays, before: Arrays | None) -> Iterator[tuple[Array, Bytes | None]]:
    """Yield each array of a state, and the bytes it had in the parent if those are as many."""
    for name, array in now.items():
        old = before.get(name) if before is not None else None
        yield array, old.data if old is not None and old.data.nbytes == array.data.nbytes else None


def chunks(array: Array, old: Bytes | None) -> Iterator[tuple[Array, Bytes | None]]:
    """Yield the parts of 1 MiB of an array and of what it was."""
    for start in range(0, array.data.nbytes, CHUNK):
        part = slice(start, start + CHUNK)
        yield array._replace(data=array.data[part]), old[part] if old is not None else None


class Rule(ABC):
    """One way to store a chain."""

    name: ClassVar[str]

    @classmethod
    @abstractmethod
    def version(cls) -> str | None:
        """Return the version in use, None where it is not installed."""

    @abstractmethod
    def store(self, now: Arrays, before: Arrays | None) -> list[Kept]:
        """Return what must be kept of a state whose parent is kept."""


class Dedupe(Rule):
    """Every chunk once; fixed chunks of arrays, which find at least what content-defined chunks of files find."""

    name = "dedupe + zstd-3"

    def __init__(self) -> None:
        self._known: set[bytes] = set()
        self._zstd = zstandard.ZstdCompressor(level=LEVEL)

    @classmethod
    def version(cls) -> str | None:
        return f"zstandard {zstandard.__version__}"

    def store(self, now: Arrays, before: Arrays | None) -> list[Kept]:
        kept = []
        for array in now.values():
            for chunk, _ in chunks(array, None):
                name = hashlib.blake2b(chunk.data, digest_size=16).digest()
                if name not in self._known:
                    self._known.add(name)
                    kept.append(_smaller(self._zstd.compress(chunk.data), chunk.data))
        return kept


class BitX(Rule):
    """Exclusive or with the chunk in the same place, its bytes apart, each plane compressed."""

    name = "BitX rule"

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdCompressor(level=LEVEL)

    @classmethod
    def version(cls) -> str | None:
        return f"zstandard {zstandard.__version__}"

    def store(self, now: Arrays, before: Arrays | None) -> list[Kept]:
        kept = []
        for array, old in pairs(now, before):
            for chunk, base in chunks(array, old):
                if base is None or not np.array_equal(chunk.data, base):
                    kept.append(self._chunk(chunk, base))
        return kept

    def _chunk(self, chunk: Array, base: Bytes | None) -> Kept:
        moved = chunk.data if base is None else chunk.data ^ base
        split = np.ascontiguousarray(moved.reshape(-1, chunk.itemsize).T)
        planes = [min(plane.tobytes(), self._zstd.compress(plane), key=len) for plane in split]

        def back() -> bytes:
            long = len(moved) // chunk.itemsize
            plain = [np.frombuffer(_expanded(plane, long), np.uint8) for plane in planes]
            joined = np.ascontiguousarray(np.stack(plain).T).reshape(-1)
            return (joined if base is None else joined ^ base).tobytes()

        return Kept(sum(map(len, planes)), back, chunk.data)


class Installed(Rule):
    """A package; whole arrays, for it cuts them itself; what did not change is kept once."""

    names: ClassVar[Mapping[str, str]]  # what it calls a dtype

    def __init__(self) -> None:
        self.module = importlib.import_module(self.name)
        self._zstd = zstandard.ZstdCompressor(level=LEVEL)

    @classmethod
    def version(cls) -> str | None:
        return metadata.version(cls.name) if importlib.util.find_spec(cls.name) else None

    def store(self, now: Arrays, before: Arrays | None) -> list[Kept]:
        kept = []
        for array, old in pairs(now, before):
            if old is None or not np.array_equal(array.data, old):
                known = array.dtype in self.names
                plain = _smaller(self._zstd.compress(array.data), array.data)
                kept.append(self.array(array, old, self.names[array.dtype]) if known else plain)
        return kept

    @abstractmethod
    def array(self, array: Array, old: Bytes | None, dtype: str) -> Kept: ...


class ZipNN(Installed):
    """Exponents apart and Huffman-coded; it looks at the array alone."""

    name = "zipnn"
    names: ClassVar = {name: name for name in ("float32", "bfloat16", "float16")}

    def array(self, array: Array, old: Bytes | None, dtype: str) -> Kept:
        coder = self.module.ZipNN(input_format="byte", bytearray_dtype=dtype)
        blob = bytes(coder.compress(bytearray(array.data)))  # a copy: it changes what it is given
        return Kept(len(blob), lambda: bytes(coder.decompress(blob)), array.data)


class Z4ai(Installed):
    """A difference to the parent where there is one."""

    name = "z4ai"
    names: ClassVar = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}

    def array(self, array: Array, old: Bytes | None, dtype: str) -> Kept:
        data = array.data.tobytes()
        if old is None:
            blob = self.module.compress(data, dtype=dtype)
            return Kept(len(blob), lambda: bytes(self.module.decompress(blob)), array.data)
        base = old.tobytes()
        blob = self.module.compress_delta(data, base, dtype=dtype)
        return Kept(len(blob), lambda: bytes(self.module.decompress_delta(blob, base)), array.data)


RULES: Mapping[str, type[Rule]] = {rule.name: rule for rule in (Dedupe, BitX, ZipNN, Z4ai)}


def difference_bits(now: Arrays, before: Arrays | None) -> float:
    """Return the bits that an order-0 coder of byte planes needs for the integer differences to the parent.

    The differences are those of the bit patterns, the sign last; what has no parent is taken as it is, floats with
    the sign last.  Every plane of every chunk has a code of its own, which costs nothing.
    """
    return sum(
        _bits(_difference(chunk, base))
        for array, old in pairs(now, before)
        for chunk, base in chunks(array, old)
        if base is None or not np.array_equal(chunk.data, base)
    )


def _difference(chunk: Array, base: Bytes | None) -> NDArray[Any]:
    width = min(chunk.itemsize, 8)
    words, bits = chunk.data.view(f"u{width}"), 8 * width
    if base is not None:
        signed = (words - base.view(words.dtype)).view(f"i{width}")
        return ((signed << 1) ^ (signed >> (bits - 1))).view(words.dtype)
    return (words << 1) | (words >> (bits - 1)) if "float" in chunk.dtype else words


def _bits(words: NDArray[Any]) -> float:
    total = 0.0
    for plane in words.view(np.uint8).reshape(-1, words.itemsize).T:
        counts = np.bincount(plane, minlength=256)
        some = counts[counts > 0]
        total -= float((some * np.log2(some / len(plane))).sum())
    return total


def _smaller(blob: bytes, data: Bytes) -> Kept:
    """Return a zstd frame, or the bytes themselves where those are fewer."""
    if len(blob) >= data.nbytes:
        return Kept(data.nbytes, data.tobytes, data)
    return Kept(len(blob), lambda: zstandard.decompress(blob, data.nbytes), data)


def _expanded(plane: bytes, length: int) -> bytes:
    return plane if len(plane) == length else zstandard.decompress(plane, length)
