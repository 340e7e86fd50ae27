"""Proof: whether what an optimizer is supposed to have done shows in a sample of the values.

Names and orders are guesses.  A guess counts when the predictor, given a few hundred elements of its bases, gives half
of the elements exactly, or saves two bits a value against the plain difference to the parent.

Elements are few and arrays many, so the elements of all arrays that step with the same numbers are judged together.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstore.codecs.adam import Optimizer
from chainstore.codecs.adam_parameters import parse
from chainstore.codecs.floating import same_everywhere
from chainstore.codecs.planes import WORD_TYPES, Scratch
from chainstore.errors import Damaged
from chainstore.model.spec import Spec
from chainstore.model.tree import Entry
from chainstore.ops.linking import ReadSample
from chainstore.state.chunking import chunk_length
from chainstore.state.leaf import Leaf

Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]

ELEMENTS: Final = 256
_CHUNKS: Final = 4  # of an array that are looked into: each may have to be decoded
_BLOCK: Final = 1 << 14  # elements that are predicted at once
_FLOATS: Final[dict[str, np.dtype[Any]]] = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}
DTYPES: Final = frozenset(_FLOATS)  # that predictors compute in
_EXACT: Final = 0.5
_BITS: Final = 2.0
_LIKE: Final = 0.5  # cosine of what an array did and what it should have done over many steps
_SURE: Final = 0.95
_FINEST: Final = 1e-12  # distance of floats below which a weight counts no more for being small
_LIKEST: Final = 4  # arrays that are tried because they moved like a step
_MOST_JOINED: Final = 2048  # arrays of one shape


class Score(NamedTuple):
    """How well values were predicted.

    Attributes:
        exact: share of them that is.
        gained: bits a value saved against the integer difference to the parent.
        cosine: of how they moved and how they should have.
    """

    exact: float
    gained: float
    cosine: float

    @property
    def pays(self) -> bool:
        return self.gained >= _BITS or (self.exact >= _EXACT and self.gained > 0)

    @property
    def belongs(self) -> bool:
        """Whether the arrays belong together, even if the prediction over many steps gains little."""
        return self.pays or (self.cosine >= _LIKE and self.gained > 0)

    @property
    def sure(self) -> bool:
        """Whether no other way need be tried; what nobody touched is predicted exactly by ways that gain nothing."""
        return self.exact >= _SURE and self.pays


NOTHING: Final = Score(0.0, -1e9, 0.0)


class Trial(NamedTuple):
    """Something to judge: parameters of a predictor, the elements of its bases, those of before and now."""

    parameters: bytes
    bases: tuple[Floats, ...]
    before: Floats
    now: Floats


class Samples:
    """Elements of arrays as they are and as they were, each read once.

    Args:
        read: returns the elements of a stored array at ascending flat indices.
    """

    def __init__(self, read: ReadSample) -> None:
        self._read = read
        self._now: dict[int, Floats] = {}
        self._before: dict[int, Floats | None] = {}

    def now(self, leaf: Leaf) -> Floats:
        """Return elements of a live array."""
        found = self._now.get(id(leaf))
        if found is None:
            found = self._now[id(leaf)] = _of_leaf(leaf)
        return found

    def before(self, entry: Entry) -> Floats | None:
        """Return the same elements of an array of the parent; None where it is damaged."""
        if id(entry) not in self._before:
            self._before[id(entry)] = self._of_entry(entry)
        return self._before[id(entry)]

    def _of_entry(self, entry: Entry) -> Floats | None:
        assert entry.spec is not None
        try:
            read: Floats = np.asarray(self._read(entry, positions(entry.spec).all), _FLOATS[entry.spec.dtype])
        except Damaged:
            return None  # nothing must build on it; whoever looks for damage finds it
        return read


def _of_leaf(leaf: Leaf) -> Floats:
    assert leaf.spec is not None and leaf.source is not None
    places, size, floats = positions(leaf.spec), leaf.spec.itemsize, _FLOATS[leaf.spec.dtype]
    parts = []
    for start, stop, within in places.parts:
        data = leaf.source.read(start * size, stop * size)
        parts.append(np.frombuffer(data, floats)[within])  # (a copy: the next read may overwrite it)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


class _Places(NamedTuple):
    """Which elements are looked at: flat indices, and the same by chunk (first and last item, indices within)."""

    all: Indices
    parts: tuple[tuple[int, int, Indices], ...]


@lru_cache(maxsize=1 << 12)
def positions(spec: Spec) -> _Places:
    """Return the elements of an array to look at: spread over it, but within few chunks."""
    items = max(1, chunk_length(spec) // spec.itemsize)
    chunks = -(-spec.count // items)
    chosen = sorted({round(i * (chunks - 1) / (_CHUNKS - 1)) for i in range(_CHUNKS)})
    parts = []
    for chunk in chosen:
        start, stop = chunk * items, min((chunk + 1) * items, spec.count)
        wanted = min(ELEMENTS // len(chosen), stop - start)
        parts.append((start, stop, np.unique(np.linspace(0, stop - start - 1, wanted).astype(np.int64))))
    return _Places(np.concatenate([start + within for start, _, within in parts]), tuple(parts))


def judge(trials: Sequence[Trial]) -> list[Score]:
    """Return how well each prediction does.

    Cost: 0.2 ms for each different set of parameters, and 10 us a trial.
    """
    together: defaultdict[tuple[bytes, int], list[int]] = defaultdict(list)
    for number, trial in enumerate(trials):
        together[trial.parameters, trial.now.itemsize].append(number)
    scores: list[Score] = [NOTHING] * len(trials)
    with same_everywhere():
        for (parameters, _), numbers in together.items():
            found = _judge_alike(parameters, [trials[number] for number in numbers])
            for number, score in zip(numbers, found, strict=True):
                scores[number] = score
    return scores


def _judge_alike(parameters: bytes, trials: Sequence[Trial]) -> Iterable[Score]:
    bases = [np.concatenate(arrays) for arrays in zip(*(trial.bases for trial in trials), strict=True)]
    before = np.concatenate([trial.before for trial in trials])
    now = np.concatenate([trial.now for trial in trials])
    sizes = np.array([len(trial.now) for trial in trials])
    starts = np.cumsum(sizes) - sizes
    guess = _predict(parameters, bases, now)
    missed, differs = _zigzag(now, guess), _zigzag(now, before)
    gained = np.log2((differs + 1) / (missed + 1))
    moved, should = now.astype(np.float64) - before, guess.astype(np.float64) - before
    both, this, that = (np.add.reduceat(each, starts) for each in (moved * should, moved * moved, should * should))
    cosine = np.nan_to_num(both / np.sqrt(this * that))
    exact = np.add.reduceat(missed == 0, starts, dtype=np.float64) / sizes
    bits = np.add.reduceat(gained, starts) / sizes
    return map(Score, exact.tolist(), bits.tolist(), cosine.tolist())


def _predict(parameters: bytes, bases: Sequence[Floats], like: Floats) -> Floats:
    words = WORD_TYPES[like.itemsize]
    guess = np.empty_like(like)
    predictor = Optimizer(parse(parameters), like.itemsize, Scratch())
    for start in range(0, like.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        predictor.predict([base[part].view(words) for base in bases], guess[part].view(words))
    return guess


def _zigzag(now: Floats, other: Floats) -> NDArray[np.float64]:
    """Return the integer differences of the bit patterns as they are stored, as floats: only their size counts."""
    signed = np.dtype(f"i{now.itemsize}")
    difference = now.view(signed) - other.view(signed)  # (wraps, as that of the codec does)
    folded = (difference << 1) ^ (difference >> (8 * now.itemsize - 1))
    return np.asarray(folded.view(f"u{now.itemsize}"), np.float64)


def moves(before: Floats, now: Floats) -> bool:
    """Return whether any of these elements changed."""
    return before.tobytes() != now.tobytes()


def step_of(first: Floats, second: Floats | None) -> Floats:
    """Return the direction of a step, whatever its size."""
    with np.errstate(all="ignore"):
        return first if second is None else first / (np.sqrt(second) + 1e-8)


def join(steps: Sequence[Floats], moved: Sequence[tuple[Floats, Floats]]) -> list[list[int]]:
    """Return for each step which movements are most like it, the likest first; copies and averages move alike.

    Args:
        steps: directions, one for each parameter of an optimizer; all are of one shape.
        moved: elements before and now, one for each array that may be such a parameter.

    Cost: a product of matrices, 0.1 s for 2 048 of each.
    """
    directions = _unit(np.stack(steps[:_MOST_JOINED]))
    with np.errstate(all="ignore"):
        changes = _unit(np.stack([before - now for before, now in moved[:_MOST_JOINED]]))
    found = []
    for row in directions @ changes.T:
        likest = np.argpartition(-row, _LIKEST)[:_LIKEST] if len(row) > _LIKEST else np.arange(len(row))
        likest = likest[np.argsort(-row[likest], kind="stable")]
        found.append([int(column) for column in likest if row[column] >= _LIKE])
    return found + [[] for _ in steps[_MOST_JOINED:]]


def _unit(rows: Floats) -> Floats:
    with np.errstate(all="ignore"):
        finite = np.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0)
        unit: Floats = np.nan_to_num(finite / np.sqrt(np.square(finite).sum(axis=1, keepdims=True)))
    return unit


class Stepped(NamedTuple):
    """One weight and the moments of its step, for `fitted_rate`."""

    before: Floats
    now: Floats
    first: Floats
    second: Floats


def fitted_rate(stepped: Sequence[Stepped], decay: float, eps: float, first_left: float, second_left: float) -> float:
    """Return the learning rate that explains a step of Adam best; 0 where none does.

    Args:
        decay: weight decay, if it is decoupled; else 0.
        first_left, second_left: 1 - beta ** step.
    """
    before, now, first, second = (np.concatenate(each).astype(np.float64) for each in zip(*stepped, strict=True))
    with np.errstate(all="ignore"):
        direction = first / first_left / (np.sqrt(second / second_left) + eps) + decay * before
        weight = 1 / np.square(np.maximum(np.spacing(np.abs(now).astype(np.float32)).astype(np.float64), _FINEST))
        weight[~np.isfinite(direction * (before - now))] = 0.0
        direction[weight == 0.0] = 0.0
        rate = float((weight * direction * (before - now)).sum() / (weight * direction * direction).sum())
    return rate if 0.0 < rate < 1e3 else 0.0
