"""Listing: what lies directly below a path of a snapshot, from its names alone.

>>> top_level(Manifest(), ())
[]
"""

from dataclasses import dataclass

from chainstore.display import count
from chainstore.model.manifest import Manifest
from chainstore.model.paths import Attr, Path
from chainstore.model.spec import Spec
from chainstore.model.tree import Entry
from chainstore.state import nodes, shown_spec


@dataclass(frozen=True, slots=True)
class Item:
    """One key of a snapshot and what it leads to.

    Attributes:
        key: the last of its path.
        spec: dtype and shape of an array; None for anything else.
        arrays: how many there are at and below it.
        nbytes: of all that is stored at and below it, before compression.
        is_container: whether keys lie below it.
    """

    key: object
    spec: Spec | None
    arrays: int
    nbytes: int
    is_container: bool

    @property
    def kind(self) -> str:
        """What it is, in a word or two: `float32`, `12 arrays`, `value`."""
        if self.spec is not None:
            return self.spec.dtype
        return count(self.arrays, "array") if self.is_container else "value"

    @property
    def shape(self) -> str:
        """The shape of an array, `3 x 4` or `scalar`; "" for anything else."""
        return "" if self.spec is None else " x ".join(map(str, self.spec.shape)) or "scalar"


def top_level(manifest: Manifest, root: Path) -> list[Item]:
    """Return the items directly below `root`, in the order of the state; reads no data."""
    depth = len(root)
    below: dict[object, list[Entry]] = {}
    for entry in manifest.entries:
        if len(entry.path) > depth and entry.path[:depth] == root and type(entry.path[depth]) is not Attr:
            key = entry.path[depth]
            below.setdefault((type(key), key), []).append(entry)
    return [_item(manifest, entries, depth) for entries in below.values()]


def _item(manifest: Manifest, entries: list[Entry], depth: int) -> Item:
    top = entries[0]
    is_container = isinstance(top.node, list) and top.node[0] in nodes.CONTAINERS
    spec = None if is_container else shown_spec(top, manifest.get)
    arrays = sum(_is_array(each) for each in entries)
    return Item(top.path[depth], spec, arrays, sum(each.nbytes for each in entries), is_container)


def _is_array(entry: Entry) -> bool:
    """Tell whether an entry is an array as its user sees it, and no inner part of one."""
    code = entry.node[0] if isinstance(entry.node, list) else None
    inner = any(type(key) is Attr for key in entry.path)
    return not inner and (code == nodes.ALIAS or code in nodes.TORCH_CODES or code in nodes.NUMPY_CODES)
