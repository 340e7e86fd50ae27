"""torch tensors: every dtype, dense layouts, and those that consist of other tensors.

Memory is read and written by address, so no dtype is special and neither autograd nor version counters notice.
Only `adapters` loads this module, when a state or a snapshot holds a tensor.

Flags in `shown`: 1 requires grad, 2 is a Parameter, 4 is a Buffer, 8 is a Buffer that is not persistent.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.parameter import Buffer, Parameter

from chainstore.errors import Malformed, Unsupported
from chainstore.model.spec import DTYPES, Spec, find_dtype
from chainstore.model.wire import Node
from chainstore.state import nodes, torch_parts
from chainstore.state.leaf import BytesSource, Composite, Dense, Region, Source
from chainstore.state.numpy_memory import HostSource, gather_host, memory_bytes
from chainstore.state.sharing import is_packed, row_major, squeeze_repeats
from chainstore.state.torch_device import DeviceSource, gather_device, words
from chainstore.state.value_codes import Refused

REQUIRES_GRAD: Final = 1
PARAMETER: Final = 2
BUFFER: Final = 4
TRANSIENT: Final = 8

_DTYPES: Final = {name: getattr(torch, name) for name in DTYPES if hasattr(torch, name)}
_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}
_OWN_TYPES: Final = frozenset({Tensor, Parameter})
_SHORT: Final[dict[int, Node]] = {shown: [nodes.TENSOR, shown] if shown else [nodes.TENSOR] for shown in range(16)}


class _Facts(NamedTuple):
    """What follows from a tensor's dtype, shape and strides alone; most tensors of a model share theirs.

    Attributes:
        steps: strides in bytes.
        packed: whether the memory has no gaps, so that it is stored as it lies.
        tail: what the node says of it after `shown`; None in the usual case of C order.
    """

    name: str
    spec: Spec
    nbytes: int
    itemsize: int
    steps: tuple[int, ...]
    packed: bool
    tail: list[Node] | None


@lru_cache(maxsize=1 << 14)
def _facts(dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> _Facts:
    name = _NAMES.get(dtype)
    if name is None:
        raise Refused(f"dtype {dtype} is not known to this version")
    itemsize = DTYPES[name].itemsize
    base = squeeze_repeats(shape, strides) if 0 not in shape else shape
    ordered = row_major(base)
    own = tuple(o if b != s else t for b, s, o, t in zip(base, shape, ordered, strides, strict=True))
    spec = Spec(name, base)
    packed = 0 in shape or is_packed(base, own, 1)
    in_order = not packed or own == ordered
    expanded = base != shape
    tail: list[Node] | None = None
    if expanded or not in_order:
        tail = [None if in_order else [step * itemsize for step in own]]
        if expanded:
            tail.append([*shape])
    steps = tuple(stride * itemsize for stride in strides)
    return _Facts(name, spec, spec.nbytes, itemsize, steps, packed, tail)


def _shown(tensor: Tensor) -> int:
    shown = REQUIRES_GRAD if tensor.requires_grad else 0
    if type(tensor) is Parameter or getattr(tensor, "_is_param", False):
        return shown | PARAMETER
    if getattr(tensor, "_is_buffer", False):
        return shown | BUFFER | (0 if getattr(tensor, "persistent", True) else TRANSIENT)
    return shown


class TorchAdapter:
    """The array adapter of torch."""

    def describe(self, value: object) -> Dense | Composite:
        own = type(value) in _OWN_TYPES
        if not own and isinstance(value, torch.Generator):  # (asking that of a tensor runs Python code of torch)
            return torch_parts.describe_generator(value)
        tensor = cast(Tensor, value)
        if tensor.is_meta:
            raise Refused("a meta tensor has no values")
        if not own:
            return torch_parts.describe_subclass(tensor, _shown(tensor))
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            return torch_parts.describe_composite(tensor, _shown(tensor))
        return _describe_dense(tensor)

    def outline(self, value: object) -> tuple[object, int] | None:
        kind = type(value)
        if kind not in _OWN_TYPES:
            return None
        tensor = cast(Tensor, value)
        if (
            tensor.layout is not torch.strided
            or not tensor.is_cpu
            or tensor.__dict__  # `_is_param`, `_is_buffer`: only `describe` knows all of them
            or tensor.is_conj()
            or tensor.is_neg()
            or tensor.is_quantized
            or tensor.is_nested
        ):
            return None
        try:
            address = tensor.data_ptr()
        except RuntimeError:
            return None
        shape = tensor.shape
        return ((kind, tensor.dtype, shape, tensor.stride(), tensor.requires_grad), address) if address else None

    def gather(self, arrays: Sequence[Dense], start: int, nbytes: int) -> Source:
        if any(isinstance(dense.source, DeviceSource) for dense in arrays):
            return gather_device(arrays, start, nbytes)
        return gather_host(arrays, start, nbytes)

    def allocate(self, node: Node, spec: Spec, live: object) -> tuple[object, memoryview, bool]:
        dtype = _dtype(spec.dtype)
        _, steps, shape = _parse(node)
        if steps is not None:
            itemsize = find_dtype(spec.dtype).itemsize
            if len(steps) != len(spec.shape) or not (0 in spec.shape or is_packed(spec.shape, steps, itemsize)):
                raise Malformed("entry", "strides that leave gaps")
            strides = tuple(step // itemsize for step in steps)
            if type(live) in _OWN_TYPES and shape is None and _fits(cast(Tensor, live), dtype, spec, strides):
                return live, memory_bytes(cast(Tensor, live).data_ptr(), spec.nbytes, live), True
            tensor = torch.empty_strided(spec.shape, strides, dtype=dtype, device="cpu")
        else:
            if type(live) in _OWN_TYPES and shape is None and _fits(cast(Tensor, live), dtype, spec, None):
                return live, memory_bytes(cast(Tensor, live).data_ptr(), spec.nbytes, live), True
            tensor = torch.empty(spec.shape, dtype=dtype, device="cpu")
        return tensor, memory_bytes(tensor.data_ptr(), spec.nbytes, tensor), False

    def finish(self, node: Node, memory: object, device: str | None) -> object:
        tensor = cast(Tensor, memory)
        shown, _, shape = _parse(node)
        if shape is not None:
            if squeeze_repeats(shape, [s if s == b else 0 for s, b in zip(shape, tensor.shape, strict=True)]) != tuple(
                tensor.shape
            ):
                raise Malformed("entry", "a shape its bytes do not expand to")
            tensor = tensor.expand(shape)
        if device is not None:
            tensor = tensor.to(device)
        return dress(tensor, shown) if shown else tensor

    def view(self, node: Node, base: object) -> object:
        match node:
            case [nodes.ALIAS, _, _, int(shown)] if isinstance(base, Tensor):
                return dress(base.detach(), shown)
            case [nodes.TENSOR_VIEW, int(shown), str(name), list(shape), list(steps), int(offset), _] if isinstance(
                base, Tensor
            ):
                tensor = _view(base, _dtype(name), find_dtype(name).itemsize, _sizes(shape), _sizes(steps), offset)
                return dress(tensor, shown)
        raise Malformed("entry", "not a view of a tensor")

    def compose(self, node: Node, parts: Mapping[str, object], device: str | None) -> object:
        shown, composed = torch_parts.compose(node, parts, _dtype)
        return dress(composed, shown) if isinstance(composed, Tensor) else composed

    def overwrite(self, live: object, array: object) -> bool:
        if not (isinstance(array, Tensor) and type(live) in _OWN_TYPES):
            return False
        target = cast(Tensor, live)
        if not _same_kind(target, array):
            return False
        if target.data_ptr() != array.data_ptr() or target.stride() != array.stride() or target.device != array.device:
            words(target).copy_(words(array))
        if not target.is_inference():
            torch.autograd.graph.increment_version(target)
        return True


def _describe_dense(tensor: Tensor) -> Dense:
    shape, strides = tuple(tensor.shape), tensor.stride()
    facts = _facts(tensor.dtype, shape, strides)
    shown = _shown(tensor)
    if tensor.is_conj() or tensor.is_neg():
        return _describe_lazy(tensor, shown)
    node: Node = _SHORT[shown] if facts.tail is None else [nodes.TENSOR, shown, *facts.tail]
    try:
        address = tensor.data_ptr()
        storage = tensor.untyped_storage()
    except RuntimeError as why:
        raise Refused(f"its memory cannot be reached ({str(why)[:80]})") from why
    if not address and facts.nbytes:
        raise Refused("its memory is not there: freed, or that of a functional tensor")
    if not facts.nbytes:
        return Dense(node, facts.spec, BytesSource(b""), shown, facts.name, None)
    source: Source
    if tensor.is_cpu:
        region = Region(address, facts.itemsize, shape, facts.steps, "cpu")
        stored = region if facts.spec.shape == shape else Region(address, facts.itemsize, facts.spec.shape, facts.steps)
        source = HostSource(stored, facts.nbytes, facts.packed, storage)
    else:
        region = Region(address, facts.itemsize, shape, facts.steps, str(tensor.device))
        source = DeviceSource(tensor.detach(), facts.spec.shape, facts.nbytes, facts.packed)
    return Dense(node, facts.spec, source, shown, facts.name, region)


def _describe_lazy(tensor: Tensor, shown: int) -> Dense:
    """Describe a conjugate or negative view: what it shows is computed while it is read."""
    shape = tuple(tensor.shape)
    facts = _facts(tensor.dtype, shape, row_major(shape))
    source = DeviceSource(tensor.detach(), shape, facts.nbytes, False)
    return Dense(_SHORT[shown], facts.spec, source, shown, facts.name, None)


def dress(tensor: Tensor, shown: int) -> Tensor:
    """Return a tensor on the memory of `tensor` as the kind of object it was."""
    requires_grad = bool(shown & REQUIRES_GRAD)
    if requires_grad and not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        raise Malformed("entry", f"a {tensor.dtype} tensor that requires grad")
    if shown & PARAMETER:
        return Parameter(tensor, requires_grad=requires_grad)
    if shown & BUFFER:
        tensor = cast(Tensor, Buffer(tensor, persistent=not shown & TRANSIENT))
    return tensor.requires_grad_() if requires_grad else tensor


def _dtype(name: str) -> torch.dtype:
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise Unsupported(f"torch {torch.__version__} has no dtype {name!r:.40}", hint="use a newer torch")
    return cast(torch.dtype, dtype)


def _sizes(numbers: object) -> tuple[int, ...]:
    if not isinstance(numbers, list) or not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers):
        raise Malformed("entry", "not a list of sizes")
    return tuple(numbers)


def _parse(node: Node) -> tuple[int, tuple[int, ...] | None, tuple[int, ...] | None]:
    """Return (shown, strides in bytes, expanded shape) of a stored tensor's node."""
    match node:
        case [nodes.TENSOR | nodes.TENSOR_STORAGE]:
            return 0, None, None
        case [nodes.TENSOR, int(shown)]:
            return shown, None, None
        case [nodes.TENSOR, int(shown), steps]:
            return shown, _sizes(steps), None
        case [nodes.TENSOR, int(shown), steps, shape]:
            return shown, None if steps is None else _sizes(steps), _sizes(shape)
    raise Malformed("entry", "not a tensor")


def _view(
    base: Tensor, dtype: torch.dtype, itemsize: int, shape: tuple[int, ...], steps: tuple[int, ...], offset: int
) -> Tensor:
    storage = base.untyped_storage()
    if len(shape) != len(steps) or offset % itemsize or any(step % itemsize for step in steps):
        raise Malformed("entry", "a view that begins within an item")
    first, end = Region(offset, itemsize, shape, steps).bounds()
    if first < 0 or end > storage.nbytes():
        raise Malformed("entry", "a view beyond its storage")
    tensor = torch.empty(0, dtype=dtype, device=base.device)
    strides = tuple(step // itemsize for step in steps)
    return tensor.set_(storage, offset // itemsize, shape, strides)


def _fits(live: Tensor, dtype: torch.dtype, spec: Spec, strides: tuple[int, ...] | None) -> bool:
    """Return whether the memory of `live` can take a stored tensor's bytes as they are."""
    return (
        live.dtype is dtype
        and live.is_cpu
        and live.layout is torch.strided
        and tuple(live.shape) == spec.shape
        and (live.is_contiguous() if strides is None else live.stride() == strides)
        and not (live.is_quantized or live.is_nested or live.is_conj() or live.is_neg())
        and _has_memory(live)
    )


def _has_memory(tensor: Tensor) -> bool:
    """Return whether the bytes of a tensor are there; sharded training frees storages and brings them back."""
    return tensor.numel() == 0 or (tensor.untyped_storage().nbytes() > 0 and tensor.data_ptr() != 0)


def _same_kind(live: Tensor, array: Tensor) -> bool:
    """Return whether `array` can be copied into `live` word by word."""
    plain = all(
        t.layout is torch.strided and not (t.is_quantized or t.is_nested or t.is_meta or t.is_conj() or t.is_neg())
        for t in (live, array)
    )
    repeats = any(not stride and size > 1 for size, stride in zip(live.shape, live.stride(), strict=True))
    return plain and not repeats and live.dtype is array.dtype and live.shape == array.shape and _has_memory(live)


ADAPTER: Final = TorchAdapter()
