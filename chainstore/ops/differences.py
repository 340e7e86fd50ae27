"""Differences: what `diff` finds between two snapshots, as values.

Diff        two commits and everything that differs between them
TensorDiff  one array: what became of it, and by how much
ValueDiff   one plain value, metric or entry of meta: old -> new
FileDiff    one file committed beside the state
Anomaly     something in the newer snapshot that a training run should not hold
"""

import math
import reprlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from chainstore.display import table
from chainstore.errors import InvalidInput
from chainstore.model.commit import Commit
from chainstore.model.spec import Spec

Status = Literal["equal", "changed", "reshaped", "added", "removed"]
ORDER: Final = ("rel", "abs", "norm", "name", "bytes")
KINDS: Final = ("nan", "inf", "explode")
EXPLODE_RELATIVE = 10.0  # |b - a| above so many times |a|
EXPLODE_GROWTH = 100.0  # or the largest value above so many times what it was
_SHOWN_ROWS = 20
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = _SHORT.maxset = _SHORT.maxfrozenset = 6


@dataclass(frozen=True, slots=True)
class TensorDiff:
    """What became of one array.

    Numbers are None where they were not asked for, or make no sense (of packed, quantized or raw items, which are only
    compared bit for bit; of a side that has no such array).  They are taken in double precision over the elements that
    are finite; NaN and Inf are counted instead.

    Attributes:
        path: where it is.  aliases: other paths that show the same memory.
        status: "equal" (bit for bit), "changed", "reshaped" (shape, dtype or layout differ), "added", "removed".
        old, new: dtype and shape in a and in b; None where it is not there.
        nbytes: in b, or in a where it was removed.
        changed_bytes: of the chunks that hold a difference.
        norm_a, norm_b, norm_diff: L2 norms of a, of b and of b - a.
        relative: norm_diff / norm_a; inf where only norm_a is 0.
        max_abs_a, max_abs_b, max_abs_diff: the largest absolute value of each.
        cosine: of the angle between a and b; None where one is 0.
        nan_a, nan_b, inf_a, inf_b: how many elements are NaN, and infinite.
        note: what else there is to say, "" for nothing.
    """

    path: str
    status: Status
    old: Spec | None
    new: Spec | None
    nbytes: int
    changed_bytes: int = 0
    aliases: tuple[str, ...] = ()
    norm_a: float | None = None
    norm_b: float | None = None
    norm_diff: float | None = None
    relative: float | None = None
    max_abs_a: float | None = None
    max_abs_b: float | None = None
    max_abs_diff: float | None = None
    cosine: float | None = None
    nan_a: int | None = None
    nan_b: int | None = None
    inf_a: int | None = None
    inf_b: int | None = None
    note: str = ""

    @property
    def exploded(self) -> bool:
        """Whether it grew beyond reason: changed by more than 10 times its norm, or its largest value 100 times.

        Only arrays of several floats that were not all zero can: a counter grows, and all is infinitely more than zero.
        """
        spec = self.new
        if spec is None or self.old is None or spec.kind not in ("float", "complex") or spec.count < 2:
            return False
        grown = bool(self.max_abs_a) and (self.max_abs_b or 0.0) > EXPLODE_GROWTH * (self.max_abs_a or 0.0)
        moved = self.relative is not None and EXPLODE_RELATIVE < self.relative < math.inf
        return grown or moved


@dataclass(frozen=True, slots=True)
class ValueDiff:
    """One plain value, metric or entry of meta that differs; `old` or `new` is None where it is absent."""

    path: str
    status: Literal["changed", "added", "removed"]
    old: object
    new: object

    def __str__(self) -> str:
        if self.status == "changed":
            return f"{shorten(self.old)} -> {shorten(self.new)}"
        return f"{self.status}: {shorten(self.new if self.status == 'added' else self.old)}"


@dataclass(frozen=True, slots=True)
class FileDiff:
    """One file beside the state that differs; bytes are None where it is absent."""

    name: str
    status: Literal["changed", "added", "removed"]
    old_bytes: int | None
    new_bytes: int | None


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Something in b that a training run should not hold: its kind, where, and in words why."""

    kind: Literal["nan", "inf", "explode"]
    path: str
    why: str


@dataclass(frozen=True, slots=True)
class Diff:
    """What differs between two commits.

    Attributes:
        a, b: the commits, old and new.
        tensors: every array that was compared, equal ones too, in the order of the state.
        values: plain values of the state that differ.  files: files that do.
        metrics, meta: of the commits, where they differ.
        measured: whether numbers were asked for (`norms`).
        read_bytes: raw bytes of the chunks that had to be read.
    """

    a: Commit
    b: Commit
    tensors: tuple[TensorDiff, ...] = field(repr=False)
    values: tuple[ValueDiff, ...] = field(repr=False)
    metrics: tuple[ValueDiff, ...] = field(repr=False)
    meta: tuple[ValueDiff, ...] = field(repr=False)
    files: tuple[FileDiff, ...] = field(repr=False)
    measured: bool
    read_bytes: int

    @property
    def changed(self) -> tuple[TensorDiff, ...]:
        """The arrays that are not equal."""
        return tuple(tensor for tensor in self.tensors if tensor.status != "equal")

    @property
    def same(self) -> bool:
        """Whether the snapshots hold the same arrays, values and files; metrics and meta do not count."""
        return not (self.changed or self.values or self.files)

    def ranked(self, by: str = "rel") -> tuple[TensorDiff, ...]:
        """Return the arrays that are not equal, the most remarkable first.

        Args:
            by: "rel" (relative change), "abs" (largest absolute difference), "norm" (of the difference), "bytes"
                (changed), each with what holds NaN or Inf before all others, or "name".

        Raises:
            InvalidInput: it is none of those.
        """
        if by not in ORDER:
            raise InvalidInput(f"differences are sorted by {', '.join(ORDER)}, not {by!r}")
        if by == "name":
            return tuple(sorted(self.changed, key=lambda tensor: tensor.path))
        return tuple(sorted(self.changed, key=_rank(by), reverse=True))

    def anomalies(self, *kinds: str) -> tuple[Anomaly, ...]:
        """Return what a training run should not hold, of "nan", "inf" and "explode"; of all where none is named.

        Looks at the arrays that were read: unchanged ones were not, unless that was asked for.

        Raises:
            InvalidInput: another kind is named, or nothing was measured.
        """
        unknown = set(kinds) - set(KINDS)
        if unknown:
            raise InvalidInput(f"no anomaly {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
        if not self.measured:
            raise InvalidInput("this diff has no numbers, since it was made with norms=False")
        return tuple(found for tensor in self.tensors for found in _anomalies(tensor) if found.kind in (kinds or KINDS))

    def summary(self) -> str:
        """Return `3 changed, 1 added, 96 equal; 2 values and 1 file differ`."""
        counts = Counter(tensor.status for tensor in self.tensors)
        told = ", ".join(
            f"{counts[s]:,} {s}" for s in ("changed", "reshaped", "added", "removed", "equal") if counts[s]
        )
        more = [(len(self.values), "value"), (len(self.files), "file")]
        beside = " and ".join(f"{count:,} {noun}{'s' * (count != 1)}" for count, noun in more if count)
        ending = f"; {beside} differ{'s' * (len(self.values) + len(self.files) == 1)}" if beside else ""
        return (f"tensors: {told}" if told else "no tensors") + ending

    def __repr__(self) -> str:
        lines = [f"<Diff {self.a.short}..{self.b.short} {self.summary()}>"]
        lines += [f"  {' '.join(filter(None, _cells(tensor)))}" for tensor in self.ranked()[:5]]
        lines += [f"  {value.path}: {value}" for value in self.values[:5]]
        hidden = max(0, len(self.changed) - 5) + max(0, len(self.values) - 5)
        return "\n".join([*lines, f"  ... {hidden:,} more"] if hidden else lines)

    def _repr_html_(self) -> str:
        """Return tables for notebooks."""
        title = f"{self.a.short}..{self.b.short} {self.summary()}"
        ranked = self.ranked()
        heads = ("tensor", "status", "relative", "|a|", "|b|", "|b - a|", "max abs", "NaN", "Inf")
        tables = [table(title, map(_columns, ranked[:_SHOWN_ROWS]), heads)]
        if len(ranked) > _SHOWN_ROWS:
            tables.append(f"<p>... {len(ranked) - _SHOWN_ROWS:,} more</p>")
        for name, found in (("values", self.values), ("metrics", self.metrics), ("meta", self.meta)):
            tables += [table(name, [(value.path, value) for value in found[:_SHOWN_ROWS]])] if found else []
        return "".join(tables)


def shorten(value: object) -> str:
    """Return a value as Python writes it, cut in the middle where it is long."""
    if isinstance(value, Unreadable):
        return str(value)
    return _SHORT.repr(value)


class Unreadable(str):
    """Why a plain value cannot be shown, in its place."""

    __slots__ = ()


def number(value: float | None) -> str:
    """Return four digits that matter, "" for None."""
    return "" if value is None else f"{value:.4g}"


def _rank(by: str) -> Callable[[TensorDiff], tuple[bool, float]]:
    pick: dict[str, Callable[[TensorDiff], float | None]] = {
        "rel": lambda tensor: tensor.relative,
        "abs": lambda tensor: tensor.max_abs_diff,
        "norm": lambda tensor: tensor.norm_diff,
        "bytes": lambda tensor: tensor.changed_bytes,
    }

    def key(tensor: TensorDiff) -> tuple[bool, float]:
        value = pick[by](tensor)
        return bool(tensor.nan_b or tensor.inf_b), -1.0 if value is None else value

    return key


def _anomalies(tensor: TensorDiff) -> Iterator[Anomaly]:
    total = tensor.new.count if tensor.new is not None else 0
    if tensor.nan_b:
        yield Anomaly("nan", tensor.path, f"{tensor.nan_b:,} of {total:,} are NaN{_before(tensor.nan_a)}")
    if tensor.inf_b:
        yield Anomaly("inf", tensor.path, f"{tensor.inf_b:,} of {total:,} are infinite{_before(tensor.inf_a)}")
    if tensor.exploded:
        grown = f"largest value {number(tensor.max_abs_a)} -> {number(tensor.max_abs_b)}"
        yield Anomaly("explode", tensor.path, f"relative change {number(tensor.relative)}, {grown}")


def _before(count: int | None) -> str:
    return "" if count is None else f", {count:,} before"


def _columns(tensor: TensorDiff) -> Sequence[str]:
    norms = (tensor.relative, tensor.norm_a, tensor.norm_b, tensor.norm_diff, tensor.max_abs_diff)
    odd = ("" if count is None else f"{count:,}" for count in (tensor.nan_b, tensor.inf_b))
    return (tensor.path, tensor.status, *map(number, norms), *odd)


def _cells(tensor: TensorDiff) -> Iterator[str]:
    yield f"{tensor.path}: {tensor.status}"
    yield f"relative {number(tensor.relative)}" if tensor.relative is not None else ""
    yield f"{tensor.nan_b:,} NaN" if tensor.nan_b else ""
    yield f"{tensor.inf_b:,} Inf" if tensor.inf_b else ""
