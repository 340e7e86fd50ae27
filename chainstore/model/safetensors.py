"""Files of safetensors as bytes: a length, a JSON header, and tensors without holes.  No disk, no arrays.

    header = encode_header({"w": Spec("bfloat16", (3, 4))})       the bytes in front of the data
    order(specs)                                                  in which the tensors follow

Tensors lie in the falling order of their types (the largest items first, so that each is aligned), then of names; the
header is padded to 8 bytes.  That is what the library of the same name writes, byte for byte.

Source: https://github.com/huggingface/safetensors, README, "Format".
"""

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from chainstore.errors import InvalidInput
from chainstore.model.spec import Spec

MAX_HEADER_BYTES: Final = 100_000_000
ALIGNMENT: Final = 8
METADATA: Final = "__metadata__"
DTYPES: Mapping[str, str] = MappingProxyType(  # the format's name of a type -> torch's; the data is in falling order
    {
        "BOOL": "bool",
        "U8": "uint8",
        "I8": "int8",
        "F8_E5M2": "float8_e5m2",
        "F8_E4M3": "float8_e4m3fn",
        "F8_E8M0": "float8_e8m0fnu",
        "F8_E4M3FNUZ": "float8_e4m3fnuz",
        "F8_E5M2FNUZ": "float8_e5m2fnuz",
        "I16": "int16",
        "U16": "uint16",
        "F16": "float16",
        "BF16": "bfloat16",
        "I32": "int32",
        "U32": "uint32",
        "F32": "float32",
        "C64": "complex64",
        "F64": "float64",
        "I64": "int64",
        "U64": "uint64",
    }
)
_CODES = {dtype: code for code, dtype in DTYPES.items()}
_RANKS = {dtype: rank for rank, dtype in enumerate(DTYPES.values())}


def check_dtype(dtype: str, name: str) -> str:
    """Return the format's name of a type.

    Args:
        dtype: torch's name of it.  name: of the tensor, for the error.

    Raises:
        InvalidInput: the format has no such type.
    """
    if dtype not in _CODES:
        raise InvalidInput(
            f"{name} is {dtype}, a type that safetensors does not have",
            hint="leave it out, or write floating-point tensors in another type (dtype=)",
        )
    return _CODES[dtype]


def order(specs: Mapping[str, Spec]) -> list[str]:
    """Return names in the order in which their bytes follow the header."""
    return sorted(specs, key=lambda name: (-_RANKS[specs[name].dtype], name))


def encode_header(specs: Mapping[str, Spec]) -> bytes:
    """Return the bytes in front of the data: the header's length, 8 bytes little endian, then the padded header.

    Raises:
        InvalidInput: a type or name has no place in the format, or the header would be too long for its readers.
    """
    fields: dict[str, object] = {METADATA: {"format": "pt"}}
    if METADATA in specs:
        raise InvalidInput(f"no tensor of a safetensors file is called {METADATA}")
    end = 0
    for name in order(specs):
        spec, start = specs[name], end
        end += spec.nbytes
        described = {"dtype": check_dtype(spec.dtype, name), "shape": list(spec.shape), "data_offsets": [start, end]}
        fields[name] = described
    try:
        text = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"a tensor's name is no text that can be encoded: {error.object!r}") from None
    text += b" " * (-len(text) % ALIGNMENT)
    if len(text) > MAX_HEADER_BYTES:
        raise InvalidInput(f"the header of {len(specs)} tensors is longer than readers of safetensors accept")
    return len(text).to_bytes(8, "little") + text


def split(specs: Mapping[str, Spec], shard_bytes: int | None) -> list[list[str]]:
    """Return names in groups of at most `shard_bytes` (or one tensor, if that is larger), in the order given."""
    groups: list[list[str]] = [[]]
    room = shard_bytes
    for name, spec in specs.items():
        if room is not None and shard_bytes is not None:
            if groups[-1] and spec.nbytes > room:
                groups.append([])
                room = shard_bytes
            room -= spec.nbytes
        groups[-1].append(name)
    return groups


def shard_names(stem: str, count: int) -> list[str]:
    """Return the names of the files, as Hugging Face has them: `model-00001-of-00003.safetensors`."""
    if count == 1:
        return [f"{stem}.safetensors"]
    return [f"{stem}-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


def encode_index(groups: Iterable[tuple[str, list[str]]], total_bytes: int) -> bytes:
    """Return `model.safetensors.index.json`: which tensor is in which file.

    Args:
        groups: name of a file, and of the tensors in it.
    """
    places = {name: file for file, names in groups for name in names}
    told = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(places.items()))}
    return json.dumps(told, indent=2, ensure_ascii=False).encode() + b"\n"
