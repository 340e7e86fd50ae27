"""What stored entries and a live state have in common, before one is loaded into the other."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from chainstore.errors import Malformed
from chainstore.model.paths import Attr, Path, decode_key, format_path
from chainstore.model.spec import Spec
from chainstore.model.wire import Node
from chainstore.state import nodes
from chainstore.state.flatten import Walk

_DTYPE_IN_NODE: Final = nodes.VIEWS | {nodes.SPARSE_COO, nodes.SPARSE_COMPRESSED, nodes.QUANTIZED}


class Described(Protocol):
    """An entry or a leaf."""

    @property
    def node(self) -> Node: ...
    @property
    def spec(self) -> Spec | None: ...


class Placed(Described, Protocol):
    """An entry or a leaf, with its place."""

    @property
    def path(self) -> Path: ...


class Comparison(NamedTuple):
    """Paths as text, in the words of torch's `load_state_dict`.

    Attributes:
        missing: leaves that the live state has and the snapshot lacks.
        unexpected: leaves that the snapshot holds and the live state lacks.
        mismatched: arrays of different dtype or shape, with both; arrays on one side only.
    """

    missing: list[str]
    unexpected: list[str]
    mismatched: list[str]


def references(node: Node) -> tuple[Path, ...]:
    """Return the paths of other entries that an entry's node needs (aliases and views); with all below them.

    Whoever assembles a part of a snapshot hands these along, wherever in the snapshot they lie.
    """
    match node:
        case [nodes.ALIAS, _, list(target), *_] | [nodes.TENSOR_VIEW | nodes.ARRAY_VIEW, _, _, _, _, _, list(target)]:
            return (tuple(decode_key(key) for key in target),)
    return ()


def shown_spec(entry: Described, find: Callable[[Path], Described | None]) -> Spec | None:
    """Return dtype and shape of an array as its user sees it; None for anything else.

    It differs from `entry.spec`, which describes stored bytes, for expanded arrays, views, aliases and arrays that
    consist of others.

    Args:
        find: gives the entry at a path, for aliases.
    """
    match entry.node:
        case [nodes.TENSOR, _, _, list(shape)] | [nodes.ARRAY, _, _, _, list(shape)] if entry.spec is not None:
            return Spec(entry.spec.dtype, _shape(shape))
        case [int(code), _, dtype, shape, *_] if code in _DTYPE_IN_NODE:
            return Spec(dtype if isinstance(dtype, str) else "raw1", _shape(shape))
        case [nodes.ALIAS, *_]:
            target = find(references(entry.node)[0])
            same = target is None or (isinstance(target.node, list) and target.node[:1] == [nodes.ALIAS])
            return None if same or target is None else shown_spec(target, find)
    return entry.spec


def _shape(sizes: Node) -> tuple[int, ...]:
    if isinstance(sizes, list) and all(type(size) is int and size >= 0 for size in sizes):
        return tuple(sizes)  # type: ignore[arg-type]  # checked above
    raise Malformed("entry", "not a shape")


def compare(entries: Sequence[Placed], into: object, *, root: Path = ()) -> Comparison:
    """Return how the leaves at and below `root` differ from those of a live state.

    Values of the live state that could not be stored count as there; inner parts of arrays do not count.
    """
    stored = {e.path[len(root) :]: e for e in entries if e.path[: len(root)] == root and _counts(e.path)}
    by_path = {entry.path: entry for entry in entries}
    walk = Walk(into)
    found = {leaf.path: leaf for leaf in walk.leaves if _counts(leaf.path)}
    there = {path: shown_spec(leaf, found.get) for path, leaf in found.items()}
    result = Comparison([], [], [])
    result.missing.extend(_absent(found, stored))
    result.unexpected.extend(text for text in _absent(stored, found) if text not in walk.refused)
    for path, entry in stored.items():
        if path in there:
            ours, theirs = shown_spec(entry, by_path.get), there[path]
            if ours != theirs:
                result.mismatched.append(
                    f"{format_path(path)}: {_text(ours)} in the snapshot, {_text(theirs)} in the live state"
                )
    return result


def _counts(path: Path) -> bool:
    return not any(type(key) is Attr for key in path)


def _absent(here: Mapping[Path, Described], there: Mapping[Path, Described]) -> Iterable[str]:
    for path, leaf in here.items():
        container = isinstance(leaf.node, list) and leaf.node[0] in nodes.CONTAINERS
        if path not in there and not container:
            yield format_path(path)


def _text(spec: Spec | None) -> str:
    return f"{spec.dtype}{list(spec.shape)}" if spec is not None else "no array"
