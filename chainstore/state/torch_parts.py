"""Tensors that consist of other tensors: sparse, quantized, nested, subclasses; and torch's generators."""

import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import torch
from torch import Tensor

from chainstore.errors import Malformed, Unsupported
from chainstore.model.wire import Node
from chainstore.state import nodes
from chainstore.state.leaf import Composite
from chainstore.state.registry import REGISTRY
from chainstore.state.value_codes import Refused

_COMPRESSED: Final = {
    str(layout): layout for layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
}
_BY_ROW: Final = ("torch.sparse_csr", "torch.sparse_bsr")
# What holds the items of a quantized tensor; several of quint4x2 and quint2x4 share a byte.
_QUANTIZED: Final = {
    torch.qint8: torch.int8,
    torch.quint8: torch.uint8,
    torch.qint32: torch.int32,
    torch.quint4x2: torch.uint8,
    torch.quint2x4: torch.uint8,
}
_ITEMS_A_BYTE: Final = {torch.quint4x2: 2, torch.quint2x4: 4}

Dtypes = Callable[[str], torch.dtype]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def describe_generator(generator: torch.Generator) -> Composite:
    return Composite([nodes.GENERATOR, generator.device.type], {"state": generator.get_state()})


def describe_composite(tensor: Tensor, shown: int) -> Composite:
    """Describe a tensor that is not one run of memory.

    Raises:
        Refused: its layout is of a kind that cannot be stored.
    """
    bare = tensor.detach()
    if bare.is_nested:
        return Composite([nodes.NESTED, shown], {"tensors": [part.detach() for part in bare.unbind()]})
    if bare.is_quantized:
        return _describe_quantized(bare, shown)
    if bare.layout is torch.sparse_coo:
        return _describe_coo(bare, shown)
    if str(bare.layout) in _COMPRESSED:
        return _describe_compressed(bare, shown)
    raise Refused(f"layout {bare.layout} cannot be stored; hand over tensor.to_dense()")


def _describe_coo(bare: Tensor, shown: int) -> Composite:
    shape: Node = list(bare.shape)
    node: Node = [nodes.SPARSE_COO, shown, _name(bare.dtype), shape, bare.is_coalesced()]
    return Composite(node, {"indices": bare._indices(), "values": bare._values()})


def _describe_compressed(bare: Tensor, shown: int) -> Composite:
    shape: Node = list(bare.shape)
    layout = str(bare.layout)
    by_row = layout in _BY_ROW
    parts = {
        "compressed": bare.crow_indices() if by_row else bare.ccol_indices(),
        "plain": bare.col_indices() if by_row else bare.row_indices(),
        "values": bare.values(),
    }
    node: Node = [nodes.SPARSE_COMPRESSED, shown, _name(bare.dtype), shape, layout]
    return Composite(node, {name: part.detach() for name, part in parts.items()})


def _describe_quantized(bare: Tensor, shown: int) -> Composite:
    shape: Node = list(bare.shape)
    scheme = str(bare.qscheme())
    parts: dict[str, object] = {"data": _quantized_items(bare)}
    axis = None
    if bare.qscheme() is torch.per_tensor_affine:
        parts |= {"scale": bare.q_scale(), "zero_point": bare.q_zero_point()}
    elif bare.qscheme() in (torch.per_channel_affine, torch.per_channel_affine_float_qparams):
        axis = bare.q_per_channel_axis()
        parts |= {"scale": bare.q_per_channel_scales(), "zero_point": bare.q_per_channel_zero_points()}
    else:
        raise Refused(f"quantization scheme {scheme} cannot be stored")
    return Composite([nodes.QUANTIZED, shown, _name(bare.dtype), shape, scheme, axis], parts)


def _quantized_items(bare: Tensor) -> Tensor:
    storage, dtype = bare.untyped_storage(), _QUANTIZED[bare.dtype]
    items = torch.empty(0, dtype=dtype, device=bare.device)
    if bare.dtype not in _ITEMS_A_BYTE:
        return _set(items, storage, int(bare.storage_offset()), tuple(bare.shape), bare.stride())
    if bare.storage_offset() or not bare.is_contiguous():
        raise Refused(f"a view of packed {bare.dtype} items cannot be stored; hand over a clone")
    return _set(items, storage, 0, (_packed_bytes(bare.dtype, bare.numel()),), (1,))


def _packed_bytes(dtype: torch.dtype, count: int) -> int:
    return -(-count // _ITEMS_A_BYTE[dtype])


def _set(
    tensor: Tensor, storage: torch.UntypedStorage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> Tensor:
    return tensor.set_(storage, offset, shape, strides)


def describe_subclass(tensor: Tensor, shown: int) -> Composite:
    """Describe a tensor subclass by what its `__tensor_flatten__` says.

    Raises:
        Refused: it does not define that, or could not be found again when it is loaded; or it is the part of a tensor
            that this rank has.
    """
    kind = type(tensor)
    if _is_distributed(tensor):
        raise Refused(
            "a DTensor: this rank has a part of it only, and snapshots of parts are not built yet; save it with "
            "torch.distributed.checkpoint, which `chain import` reads, or hand over what its full_tensor() returns"
        )
    if tensor.layout is torch.jagged:
        return _describe_jagged(tensor, shown)
    registration = REGISTRY.by_type(kind)
    if not hasattr(kind, "__tensor_flatten__") or not hasattr(kind, "__tensor_unflatten__"):
        raise Refused("a tensor subclass that does not take itself apart (no __tensor_flatten__)")
    if registration is None and _find_class(kind.__module__, kind.__qualname__) is not kind:
        raise Refused("a tensor subclass that cannot be found by its name; register it with cs.register(TheClass)")
    names, context = cast(Any, tensor).__tensor_flatten__()
    where: list[Node] = [registration.version, registration.name] if registration else [0, _class_name(kind)]
    shape: Node = list(tensor.shape)
    strides: Node = list(tensor.stride())
    inner = {name: getattr(tensor, name) for name in names}
    return Composite([nodes.SUBCLASS, shown, *where, shape, strides], {"context": context, "inner": inner})


def _describe_jagged(tensor: Tensor, shown: int) -> Composite:
    nested = cast(Any, tensor.detach())
    parts = {"values": nested.values().detach(), "offsets": nested.offsets()}
    if nested.lengths() is not None:
        parts["lengths"] = nested.lengths()
    return Composite([nodes.JAGGED, shown, nested._ragged_idx], parts)


def _is_distributed(tensor: Tensor) -> bool:
    module = sys.modules.get("torch.distributed.tensor")  # where it is not loaded there is none
    return module is not None and isinstance(tensor, module.DTensor)


def _class_name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _find_class(module: str, name: str) -> object:
    """Return a class that is loaded already, None if it is not; nothing is ever imported."""
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


# ---- and back -------------------------------------------------------------------------------------------------


def compose(node: Node, parts: Mapping[str, object], dtype_of: Dtypes) -> tuple[int, object]:
    """Return (shown, object) of a composite entry.

    Raises:
        Malformed, Unsupported: the node is none, or names what is not there.
        RuntimeError, ValueError, TypeError, KeyError...: from torch, when the parts do not fit together.
    """
    match node:
        case [nodes.GENERATOR, str(device)]:
            generator = torch.Generator(device)
            generator.set_state(_tensor(parts["state"]))
            return 0, generator
        case [nodes.NESTED, int(shown)]:
            return shown, torch.nested.as_nested_tensor(cast("list[Tensor]", parts["tensors"]))
        case [nodes.JAGGED, int(shown), int(ragged)]:
            return shown, _compose_jagged(parts, ragged)
        case [nodes.SPARSE_COO, int(shown), str(), list(shape), bool(coalesced)]:
            return shown, _compose_coo(parts, shape, coalesced)
        case [nodes.SPARSE_COMPRESSED, int(shown), str(), list(shape), str(layout)] if layout in _COMPRESSED:
            return shown, _compose_compressed(parts, shape, layout)
        case [nodes.QUANTIZED, int(shown), str(name), list(shape), str(scheme), axis]:
            return shown, _compose_quantized(parts, dtype_of(name), shape, scheme, axis)
        case [nodes.SUBCLASS, int(shown), int(version), str(name), list(shape), list(strides)]:
            kind = _subclass(version, name)
            return shown, kind.__tensor_unflatten__(parts["inner"], parts["context"], tuple(shape), tuple(strides))
    raise Malformed("entry", "not a composite of tensors")


def _tensor(part: object) -> Tensor:
    if not isinstance(part, Tensor):
        raise Malformed("entry", "a part that is no tensor")
    return part


def _compose_coo(parts: Mapping[str, object], shape: Any, coalesced: bool) -> Tensor:
    indices, values = _tensor(parts["indices"]), _tensor(parts["values"])
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True, is_coalesced=coalesced)


def _compose_compressed(parts: Mapping[str, object], shape: Any, layout: str) -> Tensor:
    compressed, plain, values = (_tensor(parts[name]) for name in ("compressed", "plain", "values"))
    return torch.sparse_compressed_tensor(
        compressed, plain, values, shape, layout=_COMPRESSED[layout], check_invariants=True
    )


def _compose_jagged(parts: Mapping[str, object], ragged: int) -> Tensor:
    lengths = _tensor(parts["lengths"]) if "lengths" in parts else None
    values, offsets = _tensor(parts["values"]), _tensor(parts["offsets"])
    return torch.nested.nested_tensor_from_jagged(values, offsets, lengths, jagged_dim=ragged)


def _compose_quantized(
    parts: Mapping[str, object], dtype: torch.dtype, shape: list[Any], scheme: str, axis: object
) -> Tensor:
    data, scale, zero_point = _tensor(parts["data"]), cast(Any, parts["scale"]), cast(Any, parts["zero_point"])
    make = cast(Any, torch)
    if scheme == str(torch.per_tensor_affine):
        empty = make._empty_affine_quantized(shape, scale=scale, zero_point=zero_point, dtype=dtype)
    else:
        empty = make._empty_per_channel_affine_quantized(
            shape, scales=scale, zero_points=zero_point, axis=axis, dtype=dtype
        )
    packed = dtype in _ITEMS_A_BYTE
    if data.dtype is not _QUANTIZED[dtype] or list(data.shape) != (
        [_packed_bytes(dtype, empty.numel())] if packed else shape
    ):
        raise Malformed("entry", "quantized items of another shape")
    strides = empty.stride() if packed else data.stride()
    return _set(empty, data.untyped_storage(), int(data.storage_offset()), tuple(shape), strides)


def _subclass(version: int, name: str) -> Any:
    if version:
        kind: object = REGISTRY.by_name(name, version).type
    else:
        module, _, qualified = name.partition(":")
        kind = _find_class(module, qualified)
    if isinstance(kind, type) and issubclass(kind, Tensor) and hasattr(kind, "__tensor_unflatten__"):
        return kind
    raise Unsupported(
        f"this snapshot holds a tensor of class {name!r:.200}, and no such class is loaded",
        hint="import the module that defines it first; chainstore never imports a class by name",
    )
