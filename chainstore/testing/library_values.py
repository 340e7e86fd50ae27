"""Hypothesis strategies for the plain values of numpy and torch (arrays and tensors are no plain values)."""

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as from_numpy
from hypothesis.strategies import SearchStrategy
from numpy.random import MT19937, PCG64, PCG64DXSM, SFC64, Generator, Philox, RandomState, SeedSequence

_BIT_GENERATORS = (PCG64, PCG64DXSM, MT19937, Philox, SFC64)
_TORCH_NAMED = sorted(
    (value for value in vars(torch).values() if type(value) in (torch.dtype, torch.layout, torch.memory_format)),
    key=str,
)
_TORCH_DEVICES = ("cpu", "cuda", "cuda:0", "cuda:7", "meta", "mps", "xpu:1")


def numpy_dtypes() -> SearchStrategy[Any]:
    """Simple dtypes of both byte orders, long doubles, and records of them."""
    simple = from_numpy.scalar_dtypes() | from_numpy.unicode_string_dtypes() | from_numpy.byte_string_dtypes()
    odd = st.sampled_from([np.dtype(char) for char in "gGqQO?"] + [np.dtype("V7"), np.dtype("M8"), np.dtype("m8[3s]")])
    return from_numpy.nested_dtypes(simple, max_itemsize=200) | odd


def numpy_scalars() -> SearchStrategy[Any]:
    """Scalars of every kind, with any bits."""
    kinds = from_numpy.scalar_dtypes() | st.sampled_from([np.dtype(char) for char in "gGqQ?"])
    records = from_numpy.array_dtypes(from_numpy.scalar_dtypes(), max_size=3)
    drawn = (kinds | records).flatmap(lambda dtype: from_numpy.arrays(dtype, 1)).map(lambda array: array[0])
    return drawn | st.text(max_size=5).map(np.str_) | st.binary(max_size=5).map(np.bytes_)


def numpy_generators() -> SearchStrategy[Any]:
    """Random generators of all kinds, fresh and used."""
    seeds = st.builds(SeedSequence, st.integers(0) | st.lists(st.integers(0), min_size=1, max_size=3))
    bits = st.builds(lambda kind, seed: kind(seed), st.sampled_from(_BIT_GENERATORS), seeds)
    states = bits.map(RandomState) | st.integers(0, 9).map(RandomState)
    return seeds | bits | st.builds(_used, bits.map(Generator) | states, st.integers(0, 3))


def _used(generator: Any, draws: int) -> Any:
    for _ in range(draws):
        generator.standard_normal()
    if isinstance(generator, Generator):
        generator.integers(9, dtype=np.uint32)  # leaves half a word over
    return generator


def torch_values() -> SearchStrategy[Any]:
    """Sizes, dtypes, devices, layouts, memory formats."""
    named = st.sampled_from(_TORCH_NAMED)
    return st.lists(st.integers(0, 99)).map(torch.Size) | named | st.sampled_from(_TORCH_DEVICES).map(torch.device)


def library_values() -> SearchStrategy[Any]:
    """Any plain value of numpy or torch."""
    return numpy_scalars() | numpy_dtypes() | numpy_generators() | torch_values()
