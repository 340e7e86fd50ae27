"""Optimizers: where a state holds some, what they keep for each parameter, and with which numbers they step.

An optimizer is any dict with `state` and `param_groups`, wherever it lies.  What it keeps for a parameter is the dict
at `state`/id; ids are numbers, or names as sharded training uses them, and groups list them in order.

torch is not imported here; the same code looks at leaves of a live state and at entries of a stored one.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from chainstore.errors import Damaged, Unsupported
from chainstore.model.paths import Path
from chainstore.model.wire import decode
from chainstore.state import nodes
from chainstore.state.comparison import Placed
from chainstore.state.leaf import MISSING, Leaf
from chainstore.state.registry import Registry
from chainstore.state.values import decode_value

I = TypeVar("I", bound=Placed)  # noqa: E741  (an item: a leaf or an entry)

FIRST, SECOND, LARGEST, MOMENTUM = "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer"
_KEPT: Final = frozenset({FIRST, SECOND, LARGEST, MOMENTUM, "step"})
_NUMBERS: Final = ("lr", "betas", "eps", "weight_decay", "decoupled_weight_decay", "momentum", "nesterov", "step")
_LISTS: Final = ("params", "param_names")
_ONE: Final = {"float32": "<f", "float64": "<d", "int64": "<q", "int32": "<i"}  # dtypes that counters and rates have
_LONGEST_VALUE: Final = 4 << 20  # bytes of a plain value that are looked into
_NO_TYPES: Final = Registry()  # nobody's code runs because of a look


@dataclass(frozen=True, slots=True)
class Held(Generic[I]):
    """What lies at the paths of a state, live or stored.

    Attributes:
        items: path -> leaf or entry.
        read: returns all bytes of one that is small.
    """

    items: Mapping[Path, I]
    read: Callable[[I], bytes]

    def value(self, path: Path) -> Any:
        """Return the plain value at `path`, or the number that an array of one item is; MISSING for all else."""
        item = self.items.get(path)
        return self.content(item) if item is not None else MISSING

    def content(self, item: I) -> Any:
        """Return the plain value that an item is, as `value` does."""
        one = _ONE.get(item.spec.dtype) if item.spec is not None and item.spec.count == 1 else None
        if _code(item) != nodes.VALUE and (one is None or _code(item) not in nodes.STORED):
            return MISSING
        try:
            data = self.read(item)
            if one is not None:
                return struct.unpack(one, data)[0]
            return decode_value(decode(data, what="value"), _NO_TYPES) if len(data) <= _LONGEST_VALUE else MISSING
        except (Damaged, Unsupported):  # what cannot be read, and types that only their owner can make
            return MISSING

    def groups(self, path: Path) -> list[Mapping[str, Any]]:
        """Return the parameter groups at `path`, less what is of no use here; [] where there are none."""
        value = self.value(path)
        if value is MISSING:  # a group holds an array, a learning rate as a rule
            value = list(self._each(path))
        if type(value) is not list or not all(type(group) is dict for group in value):
            return []
        return value if all(type(group.get("params")) is list for group in value) else []

    def _each(self, path: Path) -> Iterator[object]:
        index = 0
        while (*path, index) in self.items:
            at = (*path, index)
            group = self.value(at)
            yield self._group(at) if group is MISSING else group
            index += 1

    def _group(self, at: Path) -> dict[str, Any]:
        found = {name: self.value((*at, name)) for name in (*_NUMBERS, *_LISTS)}
        if found["betas"] is MISSING:
            found["betas"] = (self.value((*at, "betas", 0)), self.value((*at, "betas", 1)))
        return {name: value for name, value in found.items() if value is not MISSING}


class Slot(NamedTuple):
    """What an optimizer keeps for one parameter.

    Attributes:
        place: path of the dict it is in.
        name: of the parameter, where the optimizer knows one.
        group: index of its parameter group.
        kept: name ("exp_avg", "step"...) -> leaf; arrays with bytes of their own and plain values.
    """

    place: Path
    name: str | None
    group: int
    kept: Mapping[str, Leaf]


class Optimizer(NamedTuple):
    """One optimizer of a state: where it lies, its parameter groups, what it keeps, in the order of its groups."""

    path: Path
    groups: list[Mapping[str, Any]]
    slots: list[Slot]


def optimizers(leaves: Sequence[Leaf], held: Held[Leaf]) -> list[Optimizer]:
    """Return the optimizers of a live state that keep something.

    Args:
        leaves: in walk order.
        held: the same.

    Cost: a look at each leaf, 0.2 us, and 1 us for each leaf of an optimizer.
    """
    found = []
    states: dict[Path, int] = {}
    for index, leaf in enumerate(leaves):
        path = leaf.path
        if path and path[-1] == "state" and _code(leaf) in nodes.MAPPINGS:
            states[path[:-1]] = index
    for path, index in states.items():
        groups = held.groups((*path, "param_groups")) if (*path, "param_groups") in held.items else []
        kept = _kept(leaves, index) if groups else {}
        if kept:
            found.append(Optimizer(path, groups, list(_slots(leaves[index].path, groups, kept))))
    return found


def _kept(leaves: Sequence[Leaf], index: int) -> dict[object, dict[str, Leaf]]:
    """Return id of a parameter -> what is kept for it, from the leaves behind that of `state`."""
    above = leaves[index].path
    depth = len(above)
    kept: dict[object, dict[str, Leaf]] = {}
    for place in range(index + 1, len(leaves)):
        leaf = leaves[place]
        path = leaf.path
        if path[:depth] != above:
            break
        if len(path) == depth + 2 and path[-1] in _KEPT and leaf.source is not None:
            kept.setdefault(path[depth], {})[str(path[-1])] = leaf
    return kept


def _slots(state: Path, groups: list[Mapping[str, Any]], kept: Mapping[object, Mapping[str, Leaf]]) -> Iterator[Slot]:
    for number, group in enumerate(groups):
        names = group.get("param_names")
        if type(names) is not list or len(names) != len(group["params"]):
            names = [None] * len(group["params"])
        for place, id in enumerate(group["params"]):
            if type(id) not in (int, str) or id not in kept:
                continue
            name = id if type(id) is str else names[place]
            yield Slot((*state, id), name if type(name) is str else None, number, kept[id])


def members(groups: Sequence[Mapping[str, Any]]) -> dict[object, int]:
    """Return id of a parameter -> index of its group."""
    return {id: index for index, group in enumerate(groups) for id in group["params"] if type(id) in (int, str)}


def layout(item: Placed) -> tuple[object, ...]:
    """Return what decides which element of an array lies where: dtype, sizes and strides, as far as they are stored."""
    node = item.node if isinstance(item.node, list) else []
    return (item.spec, *(str(field) for field in node[2:]))


def _code(item: Placed) -> object:
    return item.node[0] if isinstance(item.node, list) and item.node else None
