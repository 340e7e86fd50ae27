"""Copies from a GPU into a capture buffer: by direct memory access, on a stream of their own.

The buffer's pages are registered with the driver ("pinned"), so tensors go straight into the memory that the writer
process reads, with no staging copy.  Where the driver refuses (a limit on locked memory), the same calls copy through
the driver's own staging: slower, never wrong.
"""

from collections.abc import Iterable
from typing import Final, Protocol

import torch
from torch import Tensor

from chainstore.manager.memory import Buffer

_PORTABLE: Final = 1  # pinned for every device of the process


class DeviceBytes(Protocol):
    """Bytes of a tensor that is not on the host (a `Source` of such a leaf)."""

    tensor: Tensor

    @property
    def nbytes(self) -> int: ...

    def copy_to(self, out: Tensor) -> None: ...


class DeviceCopies:
    """The way from devices into one buffer.

    Args:
        buffer: its memory is registered at the first copy, and given back to the driver before it goes away.
    """

    def __init__(self, buffer: Buffer) -> None:
        self._buffer, self._version = buffer, 0
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._events: list[torch.cuda.Event] = []

    def start(self, copies: Iterable[tuple[DeviceBytes, int]]) -> None:
        """Begin to copy; what the current streams have been given so far is copied as it will be after that.

        Args:
            copies: sources, with the offset of each in the buffer.
        """
        by_device: dict[torch.device, list[tuple[DeviceBytes, int]]] = {}
        for source, offset in copies:
            by_device.setdefault(source.tensor.device, []).append((source, offset))
        if by_device:
            self._register(next(iter(by_device)))
            memory = torch.frombuffer(self._buffer.view, dtype=torch.uint8)
        for device, group in by_device.items():
            stream = self._streams.setdefault(device, torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                for source, offset in group:
                    source.copy_to(memory[offset : offset + source.nbytes])
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            event.record(stream)
            self._events.append(event)

    def wait(self) -> None:
        """Return when every byte is in the buffer; the GIL is free meanwhile."""
        while self._events:
            self._events.pop().synchronize()

    def _register(self, device: torch.device) -> None:
        if self._version == self._buffer.version:
            return
        self._version = self._buffer.version
        address = self._buffer.address
        driver = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        if int(driver.cudaHostRegister(address, self._buffer.capacity, _PORTABLE)):
            try:
                torch.zeros(1, device=device)  # takes the error along, which the next launch would report as its own
            except RuntimeError:
                return
            return
        self._buffer.before_release = lambda: driver.cudaHostUnregister(address)
