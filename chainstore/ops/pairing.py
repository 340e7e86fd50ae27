"""Pairing: which arrays of two snapshots belong together, what is known of them without a read, and what must be read.

Arrays pair by path; where only one side has a path, also by names that differ by the `module.` and `_orig_mod.` of
wrappers.  Chunks are named by what they hold, so equal ids are equal bytes, and a whole chunk under another
id holds other bytes; only small arrays, which share chunks with others, must be looked at to tell.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from chainstore.ids import ObjectId
from chainstore.model.manifest import Manifest
from chainstore.model.minifloats import MINIFLOATS
from chainstore.model.paths import Attr, Key, Path, format_path
from chainstore.model.spec import Spec
from chainstore.model.tree import Entry
from chainstore.ops.differences import Status
from chainstore.ops.fitting import WRAPPERS
from chainstore.state import nodes, references, shown_spec

_REFERENCES: Final = nodes.VIEWS | {nodes.ALIAS}
_INTEGERS = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"})
NUMERIC: Final = frozenset({"bool", *_INTEGERS, *_FLOATS, *MINIFLOATS})

Length = Callable[[ObjectId], int]  # plain bytes of a chunk, less than 0 where it is missing
Reading = Literal["nothing", "bytes", "numbers"]


@dataclass(frozen=True, slots=True)
class Pair:
    """One array in two snapshots.

    Attributes:
        path: where it is.  aliases: other paths that show the same memory.
        a, b: the entries that hold its bytes; None where it is not there, or is a view whose bytes another pair has.
        old, new: dtype and shape as they are shown; None where it is not there.
        status: what is known without a read; "changed" still has to be proved where `reading` is not "nothing".
        aligned: whether the elements of a and b correspond.
        reading: what has to be read to tell the rest.
        note: what else there is to say.
    """

    path: Path
    a: Entry | None
    b: Entry | None
    old: Spec | None
    new: Spec | None
    status: Status
    aligned: bool = False
    reading: Reading = "nothing"
    aliases: tuple[str, ...] = ()
    note: str = ""


class Both(NamedTuple):
    """What two snapshots have at a path; `former` is its path in a, which wrappers may have changed."""

    path: Path
    former: Path
    a: Entry | None
    b: Entry | None


def together(a: Manifest, b: Manifest, *, wrappers: bool = True) -> list[Both]:
    """Return the entries of two snapshots by path, in the order of b, then those that only a has.

    Args:
        wrappers: whether names that differ only by what wrappers put before them belong together.
    """
    rows, met = [], set()
    for entry in b.entries:
        old = a.get(entry.path)
        met.add(id(old))
        rows.append(Both(entry.path, entry.path, old, entry))
    gone = [entry for entry in a.entries if id(entry) not in met]
    come = [row.b for row in rows if row.a is None and row.b is not None]
    former = _renamed(gone, come) if wrappers and gone and come else {}
    rows = [
        row._replace(former=former[id(row.b)].path, a=former[id(row.b)]) if id(row.b) in former else row for row in rows
    ]
    met.update(id(entry) for entry in former.values())
    return rows + [Both(entry.path, entry.path, entry, None) for entry in gone if id(entry) not in met]


def pair_arrays(
    rows: Iterable[Both],
    a: Manifest,
    b: Manifest,
    wanted: Callable[[Path], bool] | None,
    *,
    norms: bool,
    unchanged: bool,
    length: Length,
) -> list[Pair]:
    """Return the arrays among what two snapshots have.

    Args:
        rows: `together(a, b)`.
        wanted: which paths are asked for; an array is, if one of its names or the array it is a part of is.
        norms: whether numbers are asked for.  unchanged: of arrays that did not change, too.
    """
    names_a, names_b = _aliases(a), _aliases(b)
    pairs = []
    for row in rows:
        pair = _pair(row, a, b)
        if pair is None:
            continue
        names = names_b if row.b is not None else names_a
        aliases = names.get(format_path(row.path), []) if names else []
        if wanted is None or any(wanted(name) for each in (row.path, *aliases) for name in _names(each)):
            shown = tuple(format_path(alias) for alias in aliases)
            measured = norms and not (_is_quantized(row.path, b) or _is_quantized(row.former, a))
            pairs.append(replace(pair, aliases=shown, reading=_reading(pair, measured, unchanged, length)))
    return pairs


def is_same_bytes(a: Entry, b: Entry, length: Length) -> bool | None:
    """Return whether two entries hold the same bytes; None where only a read can tell."""
    if a.extents == b.extents or a.nbytes != b.nbytes:
        return a.extents == b.extents
    for old, new in zip(a.extents, b.extents, strict=False):
        if old.length != new.length:
            return None  # cut at different places from here on
        whole = old.offset == new.offset == 0
        if old.chunk != new.chunk and whole and length(old.chunk) == length(new.chunk) == old.length:
            return False
    return None


# ---- one pair ------------------------------------------------------------------------------------------------------


def _renamed(gone: Iterable[Entry], come: Iterable[Entry]) -> dict[int, Entry]:
    """Return id() of a new entry -> the old one that has its name but for wrappers; where two could be meant, none."""
    ours, theirs = _by_core(gone), _by_core(come)
    single = {core: found[0] for core, found in ours.items() if len(found) == 1}
    return {id(found[0]): single[core] for core, found in theirs.items() if len(found) == 1 and core in single}


def _by_core(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    grouped: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        grouped[format_path(tuple(_core(key) for key in entry.path))].append(entry)
    return grouped


def _core(key: Key) -> Key:
    return ".".join(part for part in key.split(".") if part not in WRAPPERS) if isinstance(key, str) else key


def _pair(row: Both, a: Manifest, b: Manifest) -> Pair | None:
    """Return what the arrays at a path are to each other; None where there are none, or another pair names them."""
    ea, eb, path = _if_array(row.a), _if_array(row.b), row.path
    if ea is None and eb is None:
        return None
    old, new = (shown_spec(e, m.get) if e is not None else None for e, m in ((ea, a), (eb, b)))
    if ea is None or eb is None:
        found, status = (eb, "added") if ea is None else (ea, "removed")
        assert found is not None
        if _code(found) in _REFERENCES:
            return Pair(path, None, None, old, new, status, note=_refers(found))  # type: ignore[arg-type]
        return Pair(path, ea, eb, old, new, status)  # type: ignore[arg-type]
    if _code(ea) in _REFERENCES and _code(eb) in _REFERENCES and references(ea.node) == references(eb.node):
        moved = _layout(ea) != _layout(eb)
        return Pair(path, None, None, old, new, "reshaped", note="another view of the same memory") if moved else None
    note = f"{format_path(row.former)} in a" if row.former is not path and row.former != path else ""
    return _untied(Pair(path, ea, eb, old, new, "changed", note=note), a, b)


def _untied(pair: Pair, a: Manifest, b: Manifest) -> Pair:
    """Return a pair with what its names refer to in place of them, and its status."""
    assert pair.a is not None and pair.b is not None
    notes = [
        f"{_refers(entry)} in {side}" for side, entry in (("a", pair.a), ("b", pair.b)) if _code(entry) in _REFERENCES
    ]
    ea, eb = _resolve(pair.a, a), _resolve(pair.b, b)
    note = ", ".join([pair.note, *notes] if pair.note else notes)
    if ea is None or eb is None:
        return Pair(pair.path, None, None, pair.old, pair.new, "reshaped", note=note)
    aligned = _correspond(ea.spec, eb.spec) and _layout(ea) == _layout(eb)
    if not aligned or ea.spec != eb.spec:
        note = note or ("" if pair.old != pair.new else "laid out differently in memory")
        return Pair(pair.path, ea, eb, pair.old, pair.new, "reshaped", aligned, note=note)
    status: Status = "equal" if ea.extents == eb.extents else "changed"
    return Pair(pair.path, ea, eb, pair.old, pair.new, status, True, note=note)


def _reading(pair: Pair, norms: bool, unchanged: bool, length: Length) -> Reading:
    entries = [entry for entry in (pair.a, pair.b) if entry is not None]
    numeric = all(entry.spec is not None and entry.spec.dtype in NUMERIC for entry in entries)
    if not entries or (pair.status == "equal" and not (unchanged and norms and numeric)):
        return "nothing"
    if norms and numeric:
        return "numbers"
    if pair.status != "changed" or pair.a is None or pair.b is None:
        return "nothing"
    return "bytes" if is_same_bytes(pair.a, pair.b, length) is None else "nothing"


def _correspond(old: Spec | None, new: Spec | None) -> bool:
    """Tell whether the elements of two arrays can be subtracted one by one, if both are in the same order."""
    if old is None or new is None or old.shape != new.shape:
        return False
    return (old.kind == "complex") == (new.kind == "complex")


def _is_quantized(path: Path, manifest: Manifest) -> bool:
    """Tell whether an array holds codes of a quantized tensor, which are no numbers without their scales."""
    if not path or path[-1] != Attr("data"):
        return False
    above = manifest.get(path[:-1])
    return above is not None and _code(above) == nodes.QUANTIZED


def _if_array(entry: Entry | None) -> Entry | None:
    return entry if entry is not None and (entry.spec is not None or _code(entry) in _REFERENCES) else None


def _resolve(entry: Entry, manifest: Manifest) -> Entry | None:
    """Return the entry that holds the bytes of an array or alias; None for a view, which shows a part of them."""
    if _code(entry) == nodes.ALIAS:
        found = manifest.get(references(entry.node)[0])
        return found if found is not None and found.spec is not None else None
    return None if _code(entry) in nodes.VIEWS else entry


def _code(entry: Entry) -> object:
    return entry.node[0] if isinstance(entry.node, list) and entry.node else None


def _layout(entry: Entry) -> object:
    """Return what a node says of the order of an array's elements: all but whether it is a Parameter or read-only."""
    node = entry.node if isinstance(entry.node, list) else []
    if _code(entry) == nodes.ALIAS:
        return None
    if _code(entry) in nodes.VIEWS:
        return [node[0], *node[2:]]
    dtype, fields = (node[2:3], node[3:]) if _code(entry) == nodes.ARRAY else ([None], node[2:])
    return tuple([*dtype, *fields, None, None, None][:3])  # trailing nils are left out on disk


def _refers(entry: Entry) -> str:
    (target, *_) = references(entry.node) or ((),)
    kind = "the same as" if _code(entry) == nodes.ALIAS else "a view of"
    return f"{kind} {format_path(target)}"


def _aliases(manifest: Manifest) -> Mapping[str, list[Path]]:
    """Return path of stored bytes, as text -> the other paths that show them."""
    found: defaultdict[str, list[Path]] = defaultdict(list)
    for entry in manifest.entries:
        for target in references(entry.node):
            found[format_path(target)].append(entry.path)
    return found


def _names(path: Path) -> Iterator[Path]:
    """Yield a path, and where it is a part of an array the path of that."""
    yield path
    while path and isinstance(path[-1], Attr):
        path = path[:-1]
        yield path
