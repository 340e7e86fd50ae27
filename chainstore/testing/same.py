"""Whether a state came back as it was: types, bits, layouts, and who shares memory with whom."""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chainstore.state.leaf import Region
from chainstore.state.numpy_memory import overlap
from chainstore.state.sharing import is_packed, squeeze_repeats
from chainstore.testing.sameness import same_value

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


def assert_same(a: object, b: object, *, sharing: bool = True) -> None:
    """Raise AssertionError, naming a path, unless `b` is what `a` must come back as.

    Compared are exact types, the order and types of keys, bits (NaN payloads, -0.0), dtypes, shapes, strides of
    dense and expanded arrays, Parameter and Buffer and requires_grad, coalescing, quantizers; and with `sharing`
    which arrays are one object, and which lie on the same memory at the same distance.
    """
    arrays: list[tuple[str, Any, Any]] = []
    _compare(a, b, "state", arrays)
    if sharing:
        _compare_sharing(arrays)


def _check(holds: bool, path: str, why: str) -> None:
    if not holds:
        raise AssertionError(f"{path}: {why}")


def _compare(a: Any, b: Any, path: str, arrays: list[tuple[str, Any, Any]]) -> None:
    _check(type(a) is type(b), path, f"{type(a).__name__} came back as {type(b).__name__}")
    if isinstance(a, dict):
        _compare_dicts(a, b, path, arrays)
    elif isinstance(a, (list, tuple, deque)):
        _check(len(a) == len(b), path, f"{len(a)} items came back as {len(b)}")
        _check(getattr(a, "maxlen", 0) == getattr(b, "maxlen", 0), path, "another maxlen")
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            _compare(x, y, f"{path}[{index}]", arrays)
    elif isinstance(a, Tensor):
        _compare_tensors(a, b, path, arrays)
    elif isinstance(a, np.ndarray):
        _compare_arrays(a, b, path, arrays)
    elif isinstance(a, torch.Generator):
        _check(a.device == b.device and torch.equal(a.get_state(), b.get_state()), path, "another generator state")
        arrays.append((path, a, b))
    else:
        _check(same_value(a, b), path, f"{a!r:.80} came back as {b!r:.80}")


def _compare_dicts(a: Any, b: Any, path: str, arrays: list[tuple[str, Any, Any]]) -> None:
    if type(a) is OrderedDict:
        _compare(vars(a), vars(b), f"{path}.__dict__", arrays)
    if type(a) is defaultdict:
        _check(a.default_factory is b.default_factory, path, "another default factory")
    _check(same_value(list(a), list(b)), path, f"keys {list(a)!r:.200} came back as {list(b)!r:.200}")
    for (key, x), y in zip(a.items(), b.values(), strict=True):
        _compare(x, y, f"{path}[{key!r}]", arrays)


def _compare_tensors(a: Tensor, b: Tensor, path: str, arrays: list[tuple[str, Any, Any]]) -> None:
    _check(b.is_leaf, path, "came back as part of a graph")
    for name in ("dtype", "layout", "requires_grad", "is_quantized", "is_nested"):
        _check(getattr(a, name) == getattr(b, name), path, f"{name} {getattr(a, name)} is {getattr(b, name)}")
    for flag in ("_is_param", "_is_buffer", "persistent"):
        _check(getattr(a, flag, None) == getattr(b, flag, None), path, f"another {flag}")
    arrays.append((path, a, b))
    if a.layout is torch.jagged:
        _compare_parts(a, b, ("values", "offsets", "lengths"), path)
        return
    if a.is_nested:
        _compare(list(a.detach().unbind()), list(b.detach().unbind()), f"{path}.unbind()", [])
        return
    _check(a.shape == b.shape, path, f"shape {tuple(a.shape)} came back as {tuple(b.shape)}")
    if type(a) not in (Tensor, torch.nn.Parameter):
        ours, theirs = (t.__tensor_flatten__() for t in (a, b))  # type: ignore[attr-defined]
        _check(ours == theirs, path, "another context")
        for name in ours[0]:
            _compare(getattr(a, name), getattr(b, name), f"{path}.{name}", [])
    elif a.layout is torch.sparse_coo:
        _check(a.is_coalesced() == b.is_coalesced(), path, "another coalesced flag")
        _compare_parts(a, b, ("_indices", "_values"), path)
    elif a.layout is not torch.strided:
        by_row = a.layout in (torch.sparse_csr, torch.sparse_bsr)
        _compare_parts(a, b, (("crow" if by_row else "ccol") + "_indices", "values"), path)
        _compare_parts(a, b, ("col_indices" if by_row else "row_indices",), path)
    elif a.is_quantized:
        _compare_quantized(a, b, path)
    else:
        _compare_memory(a, b, path)


def _compare_parts(a: Tensor, b: Tensor, names: tuple[str, ...], path: str) -> None:
    for name in names:
        x, y = (getattr(t.detach(), name)() for t in (a, b))
        _compare(x, y, f"{path}.{name}()", [])


def _compare_quantized(a: Tensor, b: Tensor, path: str) -> None:
    _check(a.qscheme() == b.qscheme(), path, "another quantization scheme")
    _check(torch.equal(a.dequantize(), b.dequantize()), path, "other quantized items")
    if a.qscheme() is torch.per_tensor_affine:
        _check((a.q_scale(), a.q_zero_point()) == (b.q_scale(), b.q_zero_point()), path, "another quantizer")
    else:
        _check(a.q_per_channel_axis() == b.q_per_channel_axis(), path, "another axis")
        _compare_parts(a, b, ("q_per_channel_scales", "q_per_channel_zero_points"), path)


def _compare_memory(a: Tensor, b: Tensor, path: str) -> None:
    base = squeeze_repeats(a.shape, a.stride())
    computed = a.is_conj() or a.is_neg()  # comes back as what it shows, in C order
    if not computed and (is_packed(base, a.stride(), 1) or 0 in a.shape):
        _check(a.stride() == b.stride(), path, f"strides {a.stride()} came back as {b.stride()}")
    _check(bits_of(a) == bits_of(b), path, "other bits")


def bits_of(tensor: Tensor) -> bytes:
    """Return the items that a strided tensor shows, in C order, whatever their dtype."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    words = torch.empty(0, dtype=_WORDS[plain.element_size()], device=plain.device)
    words.set_(plain.untyped_storage(), int(plain.storage_offset()), tuple(plain.shape), plain.stride())
    return words.clone(memory_format=torch.contiguous_format).cpu().numpy().tobytes()


def _compare_arrays(
    a: "np.ndarray[Any, Any]", b: "np.ndarray[Any, Any]", path: str, arrays: list[tuple[str, Any, Any]]
) -> None:
    _check(a.dtype == b.dtype, path, f"{a.dtype} came back as {b.dtype}")
    _check(a.shape == b.shape, path, f"shape {a.shape} came back as {b.shape}")
    if a.size and is_packed(squeeze_repeats(a.shape, a.strides), a.strides, a.itemsize):
        _check(a.strides == b.strides, path, f"strides {a.strides} came back as {b.strides}")
    _check(a.flags.writeable == b.flags.writeable, path, "another writeable flag")
    _check(_item_bytes(a) == _item_bytes(b), path, "other bits")
    arrays.append((path, a, b))


def _item_bytes(array: "np.ndarray[Any, Any]") -> list[bytes]:
    """Return the bytes of all items, field by field: the padding between fields may hold anything."""
    if array.dtype.names is None:
        return [array.tobytes()]
    return [part for name in array.dtype.names for part in _item_bytes(array[name])]


def _region(array: Any) -> Region | None:
    if isinstance(array, np.ndarray):
        address = array.__array_interface__["data"][0]
        return Region(address, array.itemsize, array.shape, array.strides, "numpy") if array.size else None
    if not isinstance(array, Tensor) or type(array) not in (Tensor, torch.nn.Parameter):
        return None
    if array.layout is not torch.strided or array.is_quantized or array.is_nested or not array.numel():
        return None
    if array.is_conj() or array.is_neg():
        return None
    size = array.element_size()
    return Region(array.data_ptr(), size, tuple(array.shape), tuple(s * size for s in array.stride()), "torch")


def _pairs(arrays: list[tuple[str, Any, Any]]) -> Iterator[tuple[Any, Any]]:
    placed = [(item, _region(item[1]), _region(item[2])) for item in arrays]
    for index, one in enumerate(placed):
        for other in placed[:index]:
            yield other, one


def _compare_sharing(arrays: list[tuple[str, Any, Any]]) -> None:
    for ((p, a1, b1), r1, s1), ((q, a2, b2), r2, s2) in _pairs(arrays):
        both = f"{p} and {q}"
        _check((a1 is a2) == (b1 is b2), both, "one object where there were two, or the reverse")
        if r1 is None or r2 is None or r1.device != r2.device:
            continue
        _check(s1 is not None and s2 is not None, both, "memory is gone")
        assert s1 is not None and s2 is not None
        if overlap(r1, r2):
            _check(r2.address - r1.address == s2.address - s1.address, both, "no longer share memory")
        else:
            _check(not overlap(s1, s2), both, "share memory, which they did not")
