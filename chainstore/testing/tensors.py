"""Hypothesis strategies for tensors, arrays and whole training states: every dtype, layout and way to share memory."""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import Tensor

from chainstore.state.numpy_memory import memory_bytes
from chainstore.testing.round_trip import round_trip
from chainstore.testing.same import assert_same
from chainstore.testing.strategies import plain_values, texts

__all__ = [
    "arrays",
    "assert_same",
    "composite_tensors",
    "dense_dtypes",
    "dense_tensors",
    "related_tensors",
    "round_trip",
    "tensors",
    "training_states",
]

_QUANTIZED = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}
_NUMPY_DTYPES = ["bool", *"bBhHiIlLqQefdgFDG", ">f4", ">i8", "<U3", "S5", "M8[ns]", "m8[s]", "V7"]
_RECORDS = (
    np.dtype([("x", "<i4"), ("y", ">f8", (2,))]),
    np.dtype([("x", "u1"), ("y", "f8")], align=True),
)


def dense_dtypes() -> list[torch.dtype]:
    """Return every dtype of this torch whose items are plain memory."""
    found = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return sorted(found - _QUANTIZED, key=str)


def shapes(max_dims: int = 4) -> SearchStrategy[tuple[int, ...]]:
    """Shapes of few items: 0-dim ones, empty ones, sizes of 0 and 1 often."""
    return st.lists(st.sampled_from([1, 2, 3, 0, 4, 1]), max_size=max_dims).map(tuple)


def _fill(tensor: Tensor, seed: int) -> Tensor:
    """Give a fresh dense tensor random bits: NaN payloads, infinities, subnormal numbers."""
    nbytes = tensor.untyped_storage().nbytes()
    bits = np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)
    if tensor.dtype is torch.bool:
        bits &= 1
    memory_bytes(tensor.untyped_storage().data_ptr(), nbytes, tensor)[:] = bits.data if nbytes else b""
    return tensor


def _as_is(t: Tensor) -> Tensor:
    return t


def _with_gaps(t: Tensor) -> Tensor:
    return t[..., ::2] if t.dim() else t


def _inner(t: Tensor) -> Tensor:
    return t[1:] if t.dim() else t


def _repeated(t: Tensor) -> Tensor:
    return t.unsqueeze(0).expand(3, *t.shape)


def _repeated_inside(t: Tensor) -> Tensor:
    return t[..., :1].expand(t.shape) if t.dim() else t


def _channels_last(t: Tensor) -> Tensor:
    if t.dim() != 4 or not t.numel():
        return t
    n, c, h, w = t.shape
    return t.as_strided((n, c, h, w), (c * h * w, 1, w * c, c))


LAYOUTS: tuple[Callable[[Tensor], Tensor], ...] = (
    _as_is,
    lambda t: t.transpose(0, -1) if t.dim() > 1 else t,
    _with_gaps,
    _inner,
    _repeated,
    _repeated_inside,
    _channels_last,
    lambda t: _with_gaps(t.transpose(0, -1)) if t.dim() > 1 else t,
    lambda t: _repeated(t.transpose(0, -1)) if t.dim() > 1 else t,
)


def _dressed(tensor: Tensor, kind: str) -> Tensor:
    differentiable = tensor.dtype.is_floating_point or tensor.dtype.is_complex
    if kind == "parameter":
        return torch.nn.Parameter(tensor, requires_grad=differentiable)
    if kind == "frozen":
        return torch.nn.Parameter(tensor, requires_grad=False)
    if kind == "buffer":
        return torch.nn.Buffer(tensor, persistent=False)
    if kind == "grad" and differentiable:
        return tensor.detach().requires_grad_()
    return tensor


@st.composite
def dense_tensors(draw: st.DrawFn) -> Tensor:
    """A strided tensor: any dtype and bits, any layout, Parameters, Buffers, made under inference mode or not."""
    dtype = draw(st.sampled_from(dense_dtypes()))
    kind = draw(st.sampled_from(["plain", "plain", "parameter", "frozen", "buffer", "grad", "inference"]))
    shape = draw(shapes())
    layout = draw(st.sampled_from(LAYOUTS))
    with torch.inference_mode(kind == "inference"):
        tensor = _fill(torch.empty(shape, dtype=dtype, device="cpu"), draw(st.integers(0, 1 << 20)))
        return _dressed(layout(tensor), kind)


@st.composite
def lazy_tensors(draw: st.DrawFn) -> Tensor:
    """A conjugate or negative view."""
    dtype = draw(st.sampled_from([torch.complex64, torch.complex128]))
    tensor = torch.randn(draw(shapes(3)), dtype=dtype, generator=_generator(draw(st.integers(0, 99))))
    view: Callable[[Tensor], Tensor] = draw(
        st.sampled_from([torch.conj, lambda t: t.conj().imag, lambda t: _with_gaps(t.conj())])
    )
    return view(tensor)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@st.composite
def composite_tensors(draw: st.DrawFn) -> Tensor:
    """A tensor that consists of others: sparse (all layouts, coalesced or not), quantized, nested."""
    generator = _generator(draw(st.integers(0, 99)))
    rows, columns = draw(st.sampled_from([(2, 4), (4, 2), (4, 4)]))
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.complex64]))
    dense = torch.randn(rows, columns, generator=generator, dtype=dtype)
    dense *= torch.rand(rows, columns, generator=generator) < 0.5
    return draw(st.sampled_from(_COMPOSITES))(dense)


def _uncoalesced(t: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[1, 0, 1], [0, 1, 0]]), t.reshape(-1)[:3], t.shape, is_coalesced=False)


def _hybrid(t: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[1, 0]]), t[:2], t.shape)


def _per_tensor(t: Tensor) -> Tensor:
    return torch.quantize_per_tensor(t.real.float(), 0.1, 3, torch.qint8)


def _per_channel(t: Tensor) -> Tensor:
    scales, zeros = torch.arange(1.0, t.shape[0] + 1).double(), torch.zeros(t.shape[0], dtype=torch.int64)
    return torch.quantize_per_channel(t.real.float(), scales, zeros, 0, torch.quint8)


def _packed_quantized(t: Tensor) -> Tensor:
    return torch.quantize_per_channel(
        t.real.float(), torch.ones(t.shape[0]), torch.zeros(t.shape[0]), 0, torch.quint4x2
    )


def _nested(t: Tensor) -> Tensor:
    return torch.nested.nested_tensor([t, t[:1]])


def _jagged(t: Tensor) -> Tensor:
    return torch.nested.nested_tensor([t, t[:1]], layout=torch.jagged)


_COMPOSITES: list[Callable[[Tensor], Tensor]] = [
    Tensor.to_sparse,
    _uncoalesced,
    _hybrid,
    Tensor.to_sparse_csr,
    Tensor.to_sparse_csc,
    lambda t: t.to_sparse_bsr((2, 2)),
    lambda t: t.to_sparse_bsc((2, 2)),
    lambda t: torch.nn.Parameter(t.to_sparse()),
    _per_tensor,
    lambda t: _per_tensor(t).t(),
    _per_channel,
    _packed_quantized,
    _nested,
    _jagged,
]


def tensors() -> SearchStrategy[Tensor]:
    """Any tensor that can be stored."""
    return dense_tensors() | dense_tensors() | lazy_tensors() | composite_tensors()


RELATIONS: tuple[Callable[[Tensor], Any], ...] = (
    _as_is,
    Tensor.detach,
    lambda t: torch.nn.Parameter(t.detach()),
    Tensor.t,
    lambda t: t[0],
    lambda t: t[:, 1:],
    lambda t: t[1:],
    lambda t: t.reshape(-1)[2:7],
    lambda t: t[:1].expand(5, 4),
    lambda t: t.detach().view(torch.int32),
    lambda t: t.detach().view(torch.uint8)[:, 3:9],
    lambda t: t.unsqueeze(1),
    lambda t: t[:, ::2],
    lambda t: t[:, 1::2],
    lambda t: t.clone(),
    lambda t: t.numpy(),
)


@st.composite
def related_tensors(draw: st.DrawFn) -> list[Any]:
    """Tensors (and some arrays) of which several show the same memory: equal, overlapping, side by side."""
    base = torch.arange(12.0).reshape(3, 4) + draw(st.integers(0, 99))
    return [relation(base) for relation in draw(st.lists(st.sampled_from(RELATIONS), min_size=1, max_size=5))]


@st.composite
def arrays(draw: st.DrawFn) -> "np.ndarray[Any, Any]":
    """A numpy array of any dtype of plain items and any order, writable or not."""
    dtype = draw(st.sampled_from([*map(np.dtype, _NUMPY_DTYPES), *_RECORDS]))
    shape = draw(shapes(3))
    raw = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 2, prod(shape) * dtype.itemsize, np.uint8)
    array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, raw) if raw.size else np.empty(shape, dtype)
    order: Callable[[Any], Any] = draw(
        st.sampled_from([lambda a: a, lambda a: a.T, lambda a: a[..., ::2], lambda a: a[::-1], lambda a: a[1:]])
    )
    array = order(array) if array.ndim else array
    if draw(st.booleans()):
        array = array.view()
        array.flags.writeable = False
    return np.broadcast_to(array, (2, *array.shape)) if draw(st.integers(0, 9)) == 0 else array


def _keys() -> SearchStrategy[Any]:
    plain = texts(6) | st.sampled_from(["weight", "0", "a/b", ""]) | st.integers(-3, 99)
    return plain | st.booleans() | st.none() | st.binary(max_size=3) | st.tuples(st.integers(0, 9), texts(3))


def _ordered(items: dict[Any, Any], metadata: Any) -> "OrderedDict[Any, Any]":
    value = OrderedDict(items)
    value._metadata = metadata  # type: ignore[attr-defined]
    return value


def training_states(max_leaves: int = 8) -> SearchStrategy[Any]:
    """A state as a trainer might hand it over, and some that none would: nested containers of everything above."""
    leaves = st.one_of(tensors(), related_tensors(), arrays(), plain_values(max_leaves=3), _generators())

    def containers(inner: SearchStrategy[Any]) -> SearchStrategy[Any]:
        mappings = st.dictionaries(_keys(), inner, max_size=4)
        sequences = st.lists(inner, max_size=4)
        return st.one_of(
            mappings,
            st.builds(_ordered, mappings, plain_values(max_leaves=3)),
            mappings.map(lambda items: defaultdict(list, items)),
            sequences,
            sequences.map(tuple),
            sequences.map(lambda items: deque(items, 10)),
        )

    return st.dictionaries(texts(6), st.recursive(leaves, containers, max_leaves=max_leaves), max_size=4)


def _generators() -> SearchStrategy[torch.Generator]:
    return st.integers(0, 99).map(_generator)
