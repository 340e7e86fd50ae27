"""Modes of the processor that a process may be in, and how it computes there.

"plain"; "torch" and "flush", in which denormal numbers are flushed to zero, as torch does it or by the processor's
control word alone; "upward", in which results are rounded up.
"""

import ctypes
import platform

import numpy as np

# Where the C library keeps the word that says how to compute, in the `fenv_t` of each processor: byte, bits.
_PLACES = {
    "flush": {"x86_64": (28, 1 << 15 | 1 << 6), "aarch64": (0, 1 << 24)},
    "upward": {"x86_64": (28, 2 << 13), "aarch64": (0, 1 << 22)},
}


def enter(mode: str) -> None:
    """Put this thread into a mode; those that it starts inherit it."""
    if mode == "torch":
        import torch

        assert torch.set_flush_denormal(True)
    elif mode != "plain":
        library = ctypes.PyDLL("libm.so.6")
        environment = ctypes.create_string_buffer(64)
        assert library.fegetenv(environment) == 0
        byte, bits = _PLACES[mode][platform.machine()]
        word = int.from_bytes(environment.raw[byte : byte + 4], "little") | bits
        environment[byte : byte + 4] = word.to_bytes(4, "little")
        assert library.fesetenv(environment) == 0


def arithmetic() -> dict[str, str]:
    """Return what this thread computes where modes differ."""
    third = np.array([1], np.float32) / np.array([3], np.float32)
    tiny = np.array([1e-40], np.float32) * np.array([1], np.float32)
    return {"third": third.tobytes().hex(), "tiny": tiny.tobytes().hex()}
