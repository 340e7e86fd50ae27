"""Where the plain values of numpy and torch are handled: modules loaded when the first such value turns up.

A state without them, and a snapshot without them, need neither library.
"""

from importlib import import_module
from typing import Any, Final

from chainstore.state import value_codes as codes

_MODULES: Final = {"numpy": "chainstore.state.numpy_values", "torch": "chainstore.state.torch_values"}


def library_of_type(kind: type) -> Any:
    """Return our module for values of `kind` if it is a type of numpy or torch, else None."""
    module = _MODULES.get(kind.__module__.partition(".")[0])
    return import_module(module) if module is not None else None


def library_of_code(code: int) -> Any:
    """Return our module for values stored under `code`, None if no library's."""
    name = "numpy" if code in codes.NUMPY_CODES else "torch" if code in codes.TORCH_CODES else None
    return import_module(_MODULES[name]) if name is not None else None
