"""Which library's arrays are which: adapters are chosen by type or by node code, and loaded when first needed.

A state that holds no tensor never imports torch, and a snapshot is listed without it: types are told by the names
of their classes, entries by their codes.
"""

from collections.abc import Callable
from functools import cache, lru_cache
from importlib import import_module
from typing import Final, cast

from chainstore.errors import FormatTooNew
from chainstore.state import nodes
from chainstore.state.leaf import ArrayAdapter, Region

_TORCH: Final = "chainstore.state.torch_adapter"
_NUMPY: Final = "chainstore.state.numpy_adapter"

_OWNERS: Final = {
    ("torch", "Tensor"): _TORCH,
    ("torch._C", "Generator"): _TORCH,
    ("numpy", "ndarray"): _NUMPY,
}
_CODES: Final = {
    **dict.fromkeys(nodes.TORCH_CODES, _TORCH),
    **dict.fromkeys(nodes.NUMPY_CODES, _NUMPY),
}


@cache
def _load(module: str) -> ArrayAdapter:
    return cast(ArrayAdapter, import_module(module).ADAPTER)


def _find(kind: type) -> ArrayAdapter | None:
    for base in kind.__mro__:
        module = _OWNERS.get((base.__module__, base.__qualname__))
        if module is not None:
            return _load(module)
    return None


_find_cached: Final[Callable[[type], ArrayAdapter | None]] = lru_cache(maxsize=1 << 10)(_find)


def adapter_of_type(kind: type) -> ArrayAdapter | None:
    """Return the adapter that owns values of a type (or of one it derives from), or None."""
    return _find_cached(kind)


def adapter_of_code(code: int) -> ArrayAdapter:
    """Return the adapter that rebuilds entries of a node code.

    Raises:
        FormatTooNew: no code of this version.
    """
    module = _CODES.get(code)
    if module is None:
        raise FormatTooNew(f"node code {code}", "read")
    return _load(module)


def overlap(a: Region, b: Region) -> bool:
    """Return whether two regions share a byte; may err towards True."""
    return bool(import_module("chainstore.state.numpy_memory").overlap(a, b))
