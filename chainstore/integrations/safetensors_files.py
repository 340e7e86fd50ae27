"""Files of safetensors: a length, a JSON header, and bytes.

Read here without the package of that name, because it takes no more than this, and because its limits are what keeps a
hostile file from doing harm: a short header, ranges that leave no hole and do not overlap, sizes that fit the shapes.

Source: https://github.com/huggingface/safetensors, README, "Format".
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch

from chainstore.errors import InvalidInput
from chainstore.model.safetensors import DTYPES, MAX_HEADER_BYTES

_DTYPES: dict[str, torch.dtype] = {
    code: getattr(torch, dtype) for code, dtype in DTYPES.items() if hasattr(torch, dtype)
}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor lies in the data, bytes [start, stop)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a file by name; its `__metadata__` is left out.

    Args:
        path: a file, mapped into memory, so that tensors are read as they are used.

    Raises:
        InvalidInput: it does not follow the format, or holds a type that is not known.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise _no(path, f"its header of {length} bytes does not fit")
        header = _header(path, file.read(length))
    start = 8 + length
    data = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)[start:]
    return {place.name: _tensor(path, place, data) for place in _places(path, header, size - start)}


def _header(path: Path, data: bytes) -> dict[str, object]:
    try:
        header = json.loads(data)
    except ValueError as error:
        raise _no(path, f"its header is no JSON ({error})") from None
    if not isinstance(header, dict):
        raise _no(path, "its header is no JSON object")
    header.pop("__metadata__", None)
    return header


def _places(path: Path, header: dict[str, object], size: int) -> list[_Place]:
    """Return each tensor's place as the header lists them, checked against each other."""
    places = []
    for name, fields in header.items():
        match fields:
            case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(stop)]} if all(
                type(dim) is int and dim >= 0 for dim in shape
            ):
                places.append(_Place(name, dtype, tuple(shape), start, stop))
            case _:
                raise _no(path, f"{name!r} is not described as it should be")
    end = 0
    for place in sorted(places, key=lambda place: (place.start, place.stop)):
        if place.start != end or place.stop < end:
            raise _no(path, "its tensors overlap or leave holes")
        end = place.stop
    if end != size:
        raise _no(path, f"it has {size} bytes of data where its header names {end}")
    return places


def _tensor(path: Path, place: _Place, data: torch.Tensor) -> torch.Tensor:
    dtype = _DTYPES.get(place.dtype)
    if dtype is None:
        raise _no(path, f"{place.name!r} is of type {place.dtype}, which is not known")
    if place.stop - place.start != math.prod(place.shape) * dtype.itemsize:
        raise _no(path, f"{place.name!r} has {place.stop - place.start} bytes, which is not what its shape takes")
    raw = data[place.start : place.stop]
    if raw.storage_offset() % dtype.itemsize:
        raw = raw.clone()  # a header may end anywhere, and a view needs aligned bytes
    return raw.view(dtype).reshape(place.shape)


def _no(path: Path, why: str) -> InvalidInput:
    return InvalidInput(f"{path} is no safetensors file: {why}", hint="commit it as it is with --as-file")
