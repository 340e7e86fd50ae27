"""Floating-point arithmetic that gives the same bits in every thread and process.

A thread inherits whatever its maker did to the processor's control word: `torch.set_flush_denormal(True)` makes numpy
round tiny results to zero, and other libraries change the direction of rounding.  What is predicted when a chunk is
written must be predicted again when it is read, so predictors run inside `same_everywhere()`.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

# FE_DFL_ENV of glibc and musl: rounding to nearest, nothing flushed, nothing trapped.
_DEFAULT_ENVIRONMENT = ctypes.c_void_p(-1)
_ENVIRONMENT_BYTES = 64  # fenv_t has 32 on x86-64 and fewer elsewhere


def _c_library() -> ctypes.PyDLL:
    loaded = ctypes.PyDLL(None)
    return loaded if hasattr(loaded, "fesetenv") else ctypes.PyDLL("libm.so.6")


_C = _c_library()


@contextmanager
def same_everywhere() -> Iterator[None]:
    """Compute by IEEE 754 as it stands, and silently, in this thread; afterwards everything is as it was before."""
    before = ctypes.create_string_buffer(_ENVIRONMENT_BYTES)
    _C.fegetenv(before)
    try:
        _C.fesetenv(_DEFAULT_ENVIRONMENT)
        with np.errstate(all="ignore"):
            yield
    finally:
        _C.fesetenv(before)
