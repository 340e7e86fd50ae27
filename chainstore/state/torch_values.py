"""Plain values of torch: sizes, and the names of dtypes, devices, layouts.  Loaded on first use only.

Tensors and `torch.Generator` are no plain values; they are leaves of their own.
"""

from collections.abc import Callable
from typing import Any

import torch

from chainstore.errors import Unsupported
from chainstore.model.wire import Node
from chainstore.state import value_codes as codes
from chainstore.state.value_codes import Refused

_NAMED: dict[int, type] = {
    codes.TORCH_DTYPE: torch.dtype,
    codes.TORCH_LAYOUT: torch.layout,
    codes.TORCH_MEMORY_FORMAT: torch.memory_format,
    codes.TORCH_QSCHEME: torch.qscheme,
}
_CODES = {kind: code for code, kind in _NAMED.items()}
_MAX_NAME = 64


def encode(value: object) -> Node | None:
    """Return a torch value as a node, None when it is of no type that this module knows.

    Raises:
        Refused: of such a type, and yet it cannot be stored.
    """
    if type(value) is torch.Size:
        return _encode_size(value)
    if isinstance(value, torch.device):
        return [codes.TORCH_DEVICE, value.type, value.index]
    code = _CODES.get(type(value))
    return [code, str(value).removeprefix("torch.")] if code is not None else None


def _encode_size(value: torch.Size) -> Node:
    sizes = list(value)
    if not all(type(size) is int for size in sizes):
        raise Refused("a torch.Size with symbolic sizes")
    return [codes.TORCH_SIZE, *sizes]


def _decode_size(body: list[Node]) -> torch.Size:
    if not all(type(size) is int and abs(size) < 1 << 63 for size in body):
        raise TypeError("sizes are ints of 64 bits")
    return torch.Size(body)  # type: ignore[arg-type]


def _decode_device(body: list[Node]) -> torch.device:
    kind, index = body
    if type(kind) is not str or len(kind) > _MAX_NAME or not (kind.isascii() and kind.isalpha()):
        raise ValueError("no device")
    if index is not None and (type(index) is not int or not 0 <= index < 128):
        raise ValueError("no index of a device")
    try:
        return torch.device(kind) if index is None else torch.device(kind, index)
    except RuntimeError as error:
        raise Unsupported(f"this snapshot names a torch device {kind!r}, which this torch does not know") from error


def _decoder(code: int) -> Callable[[list[Node]], object]:
    kind = _NAMED[code]

    def decode(body: list[Node]) -> object:
        (name,) = body
        if type(name) is not str or len(name) > _MAX_NAME or not name.isidentifier():
            raise ValueError(f"no name of a {kind.__name__}")
        value: Any = getattr(torch, name, None)
        if type(value) is not kind:
            raise Unsupported(f"this snapshot names torch.{name}, which this torch does not know as a {kind.__name__}")
        return value

    return decode


DECODERS: dict[int, Callable[[list[Node]], object]] = {
    codes.TORCH_SIZE: _decode_size,
    codes.TORCH_DEVICE: _decode_device,
    **{code: _decoder(code) for code in _NAMED},
}
