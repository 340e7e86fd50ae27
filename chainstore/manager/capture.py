"""Capture: a consistent copy of a whole state in one buffer, which is all that training waits for.

    capturer = Capturer(make_buffer(0, shared=True))
    captured = capturer.capture(state)          # from here on the state may be changed
    buffer.view[leaf.offset : leaf.offset + leaf.nbytes]      # the bytes of captured.leaves[i]

The walk over the state is that of a commit: a tensor's address, shape, strides, dtype and what it shares memory with
are looked at at each capture, and nothing is concluded from a tensor being the same object.  Where a state has the form
of the last one, leaves are not made again (`Trace`).

Arrays lie at the front of the buffer in walk order, plain values (whose size changes from step to step) behind them,
so an array keeps its place while the arrays of the state keep their sizes.  What is in the buffer already is not
written again (`blocks`).
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, cast

from chainstore.manager.blocks import bring, bring_bytes, bring_read
from chainstore.manager.captured import Captured, CapturedLeaf
from chainstore.manager.memory import Buffer
from chainstore.manager.pinned import DeviceBytes, DeviceCopies
from chainstore.model.paths import Path
from chainstore.repository import Content, Leaf, Source, Trace, content_of, flatten, references

__all__ = ["Captured", "CapturedLeaf", "Capturer", "never"]

_ALIGN: Final = 64  # bytes; a cache line, and what vector instructions like
_SLACK: Final = 1 << 20  # for plain values that grow, so that they do not cost new memory


def never(path: Path) -> bool:
    """Say of every path that it may change."""
    return False


class Capturer:
    """Copies states into one buffer, one at a time: what was captured is gone when the next capture begins.

    Args:
        buffer: grows as needed.
        frozen: tells of the path of an array whether its bytes are the same for as long as this capturer is used.
            It is captured once, and again when the state's structure changes; an array on whose memory another one
            lies that may change is not taken to be frozen.
    """

    def __init__(self, buffer: Buffer, frozen: Callable[[Path], bool] = never) -> None:
        self._buffer, self._frozen = buffer, frozen
        self._devices = DeviceCopies(buffer)
        self._number = 0
        self._leaves: tuple[CapturedLeaf, ...] = ()
        self._trace: Trace | None = None  # of a state with these leaves
        self._needed = 0  # bytes of the buffer
        self._still: frozenset[int] = frozenset()  # indices of leaves that are frozen
        self._settled = 0  # version of the memory that holds the bytes of those; 0 for none

    def prepare(self, state: object) -> int:
        """Have warm memory for a state like this one, so that its first capture takes no longer than others.

        Returns:
            Bytes that a capture takes.

        Raises:
            UnsupportedState, MemoryShort: as `capture` would.
        """
        self._place(flatten(state))
        self._make_room()
        return self._needed

    def capture(self, state: object, number: int | None = None) -> Captured:
        """Copy everything that a commit of `state` would store; when this returns, the state may be changed.

        Nobody may change the state meanwhile, and nobody may need what was captured before.

        Raises:
            UnsupportedState: some values cannot be stored (all are named), or their memory is not there.
            MemoryShort: the buffer would not fit into memory.
            ForkedHandle: this is a child of the process that made the buffer.

        A capture that failed leaves nothing that is counted on: the next one looks at every byte.

        Cost: some 4 us for each array, twice that where the form of the state changed, and a copy of changed bytes.
        """
        started = time.perf_counter()
        try:
            contents, _owners = self._contents(state)
            self._make_room()
            copied = self._fill(contents)
        except BaseException:
            self._leaves, self._trace, self._settled = (), None, 0
            raise
        self._settled = self._buffer.version
        self._number = self._number + 1 if number is None else number
        nbytes = sum(leaf.nbytes for leaf in self._leaves)
        return Captured(self._number, self._leaves, nbytes, copied, time.perf_counter() - started)

    def _contents(self, state: object) -> tuple[list[Content], object]:
        """Return where the bytes of each leaf of a state are, and who keeps them there; have a place for each."""
        contents = self._trace.follow(state) if self._trace is not None else None
        if contents is not None:
            sizes = [_size(leaf, content) for leaf, content in zip(self._leaves, contents, strict=True)]
            if sizes != [leaf.nbytes for leaf in self._leaves]:  # of plain values, which lie behind all arrays
                self._leaves, self._needed = _lay_out(self._leaves, sizes)
            return contents, state
        leaves = flatten(state)
        self._place(leaves)
        self._trace = Trace.of(state, leaves)
        return [content_of(leaf.source) for leaf in leaves], leaves  # a generator's state is made by the walk

    def _place(self, leaves: Sequence[Leaf]) -> None:
        """Decide where each leaf goes, if that is not where the leaves of the last capture went."""
        if len(leaves) == len(self._leaves) and all(map(_is_same, self._leaves, leaves)):
            return
        self._settled, self._trace = 0, None  # first of all, for an exception from outside may come anywhere
        self._leaves, self._needed = _lay_out(
            leaves, [0 if leaf.source is None else leaf.source.nbytes for leaf in leaves]
        )
        self._still = frozenset() if self._frozen is never else frozenset(_still(leaves, self._frozen))

    def _make_room(self) -> None:
        if self._needed > self._buffer.capacity:
            self._buffer.ensure(self._needed + _SLACK)

    def _fill(self, contents: Sequence[Content]) -> int:
        """Bring the bytes of all leaves into the buffer, and return how many had to be written."""
        base = self._buffer.address
        skipped = self._still if self._settled == self._buffer.version else frozenset()
        there: list[tuple[DeviceBytes, int]] = []
        here: list[tuple[Content, CapturedLeaf]] = []
        for index, (content, place) in enumerate(zip(contents, self._leaves, strict=True)):
            if place.offset < 0 or content is None or index in skipped:
                continue
            if _is_on_gpu(content):
                there.append((cast(DeviceBytes, content), place.offset))
            else:
                here.append((content, place))
        copied = sum(source.nbytes for source, _ in there)
        try:
            self._devices.start(there)  # they go on by themselves while the host's are copied
            for content, place in here:
                if isinstance(content, int):
                    copied += bring(base + place.offset, content, place.nbytes)
                elif isinstance(content, bytes):
                    copied += bring_bytes(base + place.offset, content)
                else:
                    copied += bring_read(base + place.offset, cast(Source, content), place.spec)
        finally:
            self._devices.wait()
        return copied


def _size(leaf: CapturedLeaf, content: Content) -> int:
    """Return the bytes of a leaf of a state that has the form of the last one: those of an array are as many."""
    return len(content) if isinstance(content, bytes) else leaf.nbytes


def _is_on_gpu(content: Content) -> bool:
    tensor = getattr(content, "tensor", None)
    return tensor is not None and bool(tensor.is_cuda)


def _is_same(placed: CapturedLeaf, leaf: Leaf) -> bool:
    return (
        placed.path == leaf.path
        and placed.nbytes == (0 if leaf.source is None else leaf.source.nbytes)
        and (placed.spec is leaf.spec or placed.spec == leaf.spec)
        and placed.node == leaf.node
    )


def _lay_out(leaves: Sequence[Leaf | CapturedLeaf], sizes: Sequence[int]) -> tuple[tuple[CapturedLeaf, ...], int]:
    """Return leaves of these sizes with their places, and how many bytes all of them take."""
    offsets = [-1] * len(leaves)
    end = 0
    arrays = [index for index, leaf in enumerate(leaves) if leaf.spec is not None]
    values = [index for index, leaf in enumerate(leaves) if leaf.spec is None]
    for index in (*arrays, *values):
        if sizes[index]:
            offsets[index] = end
            end += -(-sizes[index] // _ALIGN) * _ALIGN
    placed = (
        CapturedLeaf(leaf.path, leaf.node, leaf.spec, offset, size)
        for leaf, offset, size in zip(leaves, offsets, sizes, strict=True)
    )
    return tuple(placed), end


def _still(leaves: Sequence[Leaf], frozen: Callable[[Path], bool]) -> Iterable[int]:
    """Yield the indices of the arrays that are frozen, and that nobody shows who is not."""
    moving = {leaf.path for leaf in leaves if not frozen(leaf.path)}
    shown_by = [(leaf.path, target) for leaf in leaves for target in references(leaf.node)]
    before = -1
    while before != len(moving):  # aliases of views of a storage: until no more is found
        before = len(moving)
        for path, target in shown_by:
            if path in moving and target not in moving:
                moving.update(leaf.path for leaf in leaves if leaf.path[: len(target)] == target)
    for index, leaf in enumerate(leaves):
        if leaf.spec is not None and leaf.path not in moving:
            yield index
