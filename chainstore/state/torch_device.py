"""Tensors that cannot be read where they lie: on another device, or computed while they are read."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from chainstore.state.leaf import Dense
from chainstore.state.numpy_memory import memory_bytes

_WORDS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


def words(tensor: Tensor) -> Tensor:
    """Return a tensor's items as integers of their size, on the same memory; for dtypes that know no arithmetic."""
    dtype = _WORDS[tensor.element_size()]
    offset, shape = int(tensor.storage_offset()), tuple(tensor.shape)
    return _on(tensor.untyped_storage(), dtype, offset, shape, tensor.stride(), tensor)


def _on(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    like: Tensor,
) -> Tensor:
    fresh = torch.empty(0, dtype=dtype, device=like.device)
    return fresh.set_(storage, offset, shape, strides)


class DeviceSource:
    """The bytes of a tensor, copied to the host range by range.

    Args:
        tensor: detached; it may be expanded.
        shape: its shape with repeated dimensions reduced to one.
        packed: whether bytes are wanted in memory order, without gaps; else in C order.
    """

    def __init__(self, tensor: Tensor, shape: tuple[int, ...], nbytes: int, packed: bool) -> None:
        self.tensor, self.nbytes = tensor, nbytes
        self._shape, self._packed = shape, packed

    def read(self, start: int, stop: int) -> memoryview:
        if stop <= start:
            return memoryview(b"")
        size = self.tensor.element_size()
        first, last = start // size, -(-stop // size)
        part = self._items(first, last).contiguous().cpu()
        return memory_bytes(part.data_ptr() + start - first * size, stop - start, part)

    def copy_to(self, out: Tensor) -> None:
        """Have the current stream of the tensor's device copy all bytes to `out`: bytes of the host, pinned or not.

        Returns at once where `out` is pinned; nothing may be read there, or written here, before the stream is done.
        """
        count = self.nbytes // self.tensor.element_size()
        items = self._items(0, count).contiguous()
        out.copy_(items.reshape(-1).view(torch.uint8), non_blocking=True)

    def _items(self, first: int, last: int) -> Tensor:
        tensor = self.tensor
        if tensor.is_conj() or tensor.is_neg():
            return _take(tensor, first, last).resolve_conj().resolve_neg()
        if self._packed:
            offset, dtype = int(tensor.storage_offset()) + first, _WORDS[tensor.element_size()]
            return _on(tensor.untyped_storage(), dtype, offset, (last - first,), (1,), tensor)
        whole = words(tensor)
        return _take(whole[tuple(slice(size) for size in self._shape)], first, last)


def _take(tensor: Tensor, first: int, last: int) -> Tensor:
    """Return items [first, last) in C order, touching only the rows that hold them."""
    if tensor.dim() == 0:
        return tensor.reshape(1)
    row = tensor.numel() // tensor.shape[0]
    low, high = first // row, -(-last // row)
    if high - low == 1 and tensor.dim() > 1:
        return _take(tensor[low], first - low * row, last - low * row)
    return tensor[low:high].reshape(-1)[first - low * row : last - low * row]


def gather_device(arrays: Sequence[Dense], start: int, nbytes: int) -> DeviceSource:
    """Return the bytes that tensors on one device show in a range of addresses, with zeros in between."""
    sources = [dense.source for dense in arrays if isinstance(dense.source, DeviceSource)]
    hull = torch.zeros(nbytes, dtype=torch.uint8, device=sources[0].tensor.device)
    for source in sources:
        tensor = source.tensor
        size = tensor.element_size()
        offset = (tensor.data_ptr() - start) // size
        shape, strides = tuple(tensor.shape), tensor.stride()
        _on(hull.untyped_storage(), _WORDS[size], offset, shape, strides, hull).copy_(words(tensor))
    return DeviceSource(hull, (nbytes,), nbytes, True)
