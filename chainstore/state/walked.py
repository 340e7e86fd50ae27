"""What a walk over a state found, in columns, for states of a hundred thousand arrays.

Walked     paths, nodes, specs and sizes of leaves, which the next state of the form has too
Retraced   leaves of a state that was retraced: what was walked, and where the bytes are now
"""

from collections.abc import Iterable, Mapping, Sequence
from ctypes import string_at
from operator import is_
from typing import cast, overload

from chainstore.model.paths import Path
from chainstore.model.spec import Spec
from chainstore.model.wire import Node
from chainstore.state.leaf import BytesSource, HostBytes, Leaf, Source

Content = int | bytes | Source | None
"""Bytes of a leaf: the address where they lie on the host, themselves, or whoever reads them; None for none."""


class Walked:
    """What a walk found, but for the bytes: it keeps nothing of the state alive.

    Attributes:
        paths, nodes, specs: of each leaf.
        sizes: bytes of each leaf; -1 where it has no source.
    """

    def __init__(self, leaves: Iterable[Leaf]) -> None:
        self.paths: list[Path] = []
        self.nodes: list[Node] = []
        self.specs: list[Spec | None] = []
        self.sizes: list[int] = []
        for path, node, spec, source in leaves:
            self.paths.append(path)
            self.nodes.append(node)
            self.specs.append(spec)
            self.sizes.append(-1 if source is None else source.nbytes)

    def with_sizes(self, sizes: list[int]) -> "Walked":
        """Return a walk that found the same with other sizes."""
        other = Walked(())
        other.paths, other.nodes, other.specs = self.names
        other.sizes = sizes
        return other

    @property
    def names(self) -> tuple[list[Path], list[Node], list[Spec | None]]:
        """Paths, nodes and specs."""
        return self.paths, self.nodes, self.specs

    def fits(self, other: "Walked") -> bool:
        """Return whether two walks found the same, told by the paths, nodes and specs being the same objects."""
        return (
            len(self.paths) == len(other.paths)
            and all(map(is_, self.paths, other.paths))
            and all(map(is_, self.nodes, other.nodes))
            and all(map(is_, self.specs, other.specs))
            and self.sizes == other.sizes
        )


class Retraced(Sequence[Leaf]):
    """Leaves that are made whenever somebody looks at one.

    A hundred thousand objects that live for the time of a commit would have Python's collector look at every object
    of the process, which takes longer than the commit.

    Attributes:
        walked: what the leaves are.
        contents: their bytes.
    """

    def __init__(self, walked: Walked, contents: list[Content], arrays: Mapping[int, object]) -> None:
        self.contents, self._arrays = contents, arrays
        sizes = [
            len(content) if type(content) is bytes else size
            for content, size in zip(contents, walked.sizes, strict=True)
        ]
        self.walked = walked if sizes == walked.sizes else walked.with_sizes(sizes)

    def __len__(self) -> int:
        return len(self.contents)

    @overload
    def __getitem__(self, index: int) -> Leaf: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Leaf]: ...
    def __getitem__(self, index: int | slice) -> Leaf | Sequence[Leaf]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        walked, content = self.walked, self.contents[index]
        source: Source | None
        if type(content) is int:
            source = HostBytes(content, walked.sizes[index], self._arrays[index])
        elif type(content) is bytes:
            source = BytesSource(content)
        else:
            source = cast("Source | None", content)
        return Leaf(walked.paths[index], walked.nodes[index], walked.specs[index], source)


def copy_contents(leaves: Sequence[Leaf], numbers: Iterable[int]) -> list[bytes]:
    """Return copies of the bytes of some leaves, all of which have a source."""
    if not isinstance(leaves, Retraced):
        return [_copy(content_of(leaves[number].source), leaves[number].source) for number in numbers]
    contents, sizes = leaves.contents, leaves.walked.sizes
    return [
        string_at(content, sizes[number]) if type(content := contents[number]) is int else _copy(content)
        for number in numbers
    ]


def _copy(content: Content, source: Source | None = None) -> bytes:
    if isinstance(content, bytes):
        return content
    if isinstance(content, int):
        assert source is not None
        return string_at(content, source.nbytes)
    assert content is not None
    return bytes(content.read(0, content.nbytes))


def content_of(source: Source | None) -> Content:
    """Return what is to be known of the bytes of a leaf to copy them."""
    address = getattr(source, "address", None)
    if address is not None:
        return cast(int, address)
    return source.data if isinstance(source, BytesSource) else source
