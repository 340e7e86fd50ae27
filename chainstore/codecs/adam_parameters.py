"""What can be predicted of an optimizer's steps, and the numbers a prediction needs; without numpy.

A predictor computes a chunk from its bases.  Its numbers are stored ready for use: powers and roots are taken here,
once, by whoever writes the chunk.  Whoever reads it takes none, because C libraries differ in the last bit of a power.

    parameters = predictor u8 | variant u8 | steps u8 | 0 u8 | number float64 ...

    >>> hyper = Hyper(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01)
    >>> parameters = parse(parameters_for(Predictor.WEIGHT, hyper, step=100, k=1))
    >>> parameters.bases, len(parameters.numbers)
    (3, 4)
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from chainstore.errors import FormatTooNew, Malformed


class Predictor(IntEnum):
    """What is predicted, and in brackets from which bases; on disk, never reused.

    m, v, w are first moment, second moment and weight before the steps in question, m', v', w' after them.  "Idle" are
    items whose gradient was zero: rows of an embedding that no batch named, experts that no token reached.
    """

    SECOND = 1  # v' after one step: (v, m, m')
    WEIGHT = 2  # w' after one step: (w, m', v'); of amsgrad the greatest v' instead of v'
    FIRST_IDLE = 3  # m' of idle items, of SGD their momentum: (m)
    SECOND_IDLE = 4  # v' of idle items: (v)
    WEIGHT_IDLE = 5  # w' of idle items: (w, m, v)
    SECOND_MIXED = 6  # v' after several steps, idle or not: (v, m, m')
    WEIGHT_MIXED = 7  # w' after several steps, idle or not: (w, m, m', v')
    MOMENTUM = 8  # w' after one step of SGD: (w, momentum')
    GREATEST = 9  # the greatest v' so far, after one step of amsgrad: (it, v')
    WEIGHT_TOUCHED = 10  # w' after one step of SparseAdam, which leaves idle items alone: (w, m, m', v')
    SECOND_TOUCHED = 11  # v' after one such step: (v, m, m')


# Variants are a sum of these.  0: as torch 2 computes on a CPU, fused or not.
PRODUCT: Final = 1  # of moments: beta1 m + (1 - beta1) g, as torch 1 computed, instead of m + (1 - beta1)(g - m)
QUOTIENT: Final = 2  # as on a GPU: m / d and g g come first, then a fused multiply-add with the scalar
UNROUNDED: Final = 4  # as fused on a GPU, with PRODUCT: scalars are not rounded, and their products in double precision
_VARIANTS: Final = PRODUCT | QUOTIENT | UNROUNDED

TOUCHED: Final = frozenset({Predictor.WEIGHT_TOUCHED, Predictor.SECOND_TOUCHED})
"""Predictors that compute nothing of items whose moment stayed what it was: a reader's work is that of what changed."""

MOST_STEPS: Final = 128  # of moments: one multiplication each
MOST_REPLAYED: Final = 16  # of weights: a step costs ten times that


class _Form(NamedTuple):
    """What the parameters of a predictor look like.

    Attributes:
        bases: how many it computes from.
        numbers: how many it takes beside those of each step.
        fewest, most: steps.
        replays: two numbers for each step follow, see `_rates`.
    """

    bases: int
    numbers: int
    fewest: int
    most: int
    replays: bool = False


_FORMS: Final = {
    Predictor.SECOND: _Form(3, 4, 1, 1),
    Predictor.WEIGHT: _Form(3, 2, 1, 1, replays=True),
    Predictor.FIRST_IDLE: _Form(1, 1, 1, MOST_STEPS),
    Predictor.SECOND_IDLE: _Form(1, 1, 1, MOST_STEPS),
    Predictor.WEIGHT_IDLE: _Form(3, 4, 1, MOST_REPLAYED, replays=True),
    Predictor.SECOND_MIXED: _Form(3, 6, 1, MOST_STEPS),
    Predictor.WEIGHT_MIXED: _Form(4, 9, 0, MOST_REPLAYED, replays=True),
    Predictor.MOMENTUM: _Form(2, 1, 1, 1),
    Predictor.GREATEST: _Form(2, 0, 1, 1),
    Predictor.WEIGHT_TOUCHED: _Form(4, 2, 1, 1),
    Predictor.SECOND_TOUCHED: _Form(3, 2, 1, 1),
}
MOST_BASES: Final = max(form.bases for form in _FORMS.values())

_HEAD = struct.Struct("<4B")
_NUMBER_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Hyper:
    """How an optimizer was set while it took the steps in question.

    Attributes:
        lr, beta1, beta2, eps, weight_decay: as torch names them; of SGD, `beta1` is the momentum.
        decoupled: weight decay is of AdamW's kind; otherwise it is part of the gradient and thus of the moments.
        amsgrad: weights are divided by the greatest second moment so far.
    """

    lr: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = True
    amsgrad: bool = False

    @property
    def kept(self) -> float:
        """What weight decay leaves of a weight in one step."""
        return 1 - self.lr * self.weight_decay if self.decoupled else 1.0

    @property
    def fading(self) -> float:
        """What a step without gradient leaves of the second moment that weights are divided by."""
        return 1.0 if self.amsgrad else self.beta2


class Parameters(NamedTuple):
    """A prediction to make.

    Attributes:
        predictor: which one.
        variant: a sum of PRODUCT, QUOTIENT and UNROUNDED.
        steps: how many optimizer steps lie between the bases and the chunk; 0 where WEIGHT_MIXED is not to tell idle
            items apart.
        numbers: what docs/format.md says; each may be anything a float64 can be.
    """

    predictor: Predictor
    variant: int
    steps: int
    numbers: tuple[float, ...]

    @property
    def bases(self) -> int:
        """How many bases it computes from."""
        return _FORMS[self.predictor].bases

    @property
    def nbytes(self) -> int:
        """Bytes it takes at the head of a payload."""
        return _HEAD.size + _NUMBER_BYTES * len(self.numbers)

    def rates(self) -> Iterator[tuple[float, float]]:
        """Yield the two numbers of each step."""
        pairs = self.numbers[_FORMS[self.predictor].numbers :]
        return zip(pairs[::2], pairs[1::2], strict=True)

    def to_bytes(self) -> bytes:
        """Return the head of a payload."""
        head = _HEAD.pack(self.predictor, self.variant, self.steps, 0)
        return head + struct.pack(f"<{len(self.numbers)}d", *self.numbers)


def parse(payload: memoryview | bytes) -> Parameters:
    """Return the parameters at the head of `payload`.

    Raises:
        Malformed: it is too short, or they contradict themselves.
        FormatTooNew: there is no such predictor or variant here.
    """
    if len(payload) < _HEAD.size:
        raise Malformed("predictor", f"its parameters have {len(payload)} bytes", 0)
    number, variant, steps, zero = _HEAD.unpack_from(payload)
    if number not in _FORMS or variant & ~_VARIANTS:
        raise FormatTooNew(f"predictor {number}.{variant}", "read")
    form = _FORMS[Predictor(number)]
    if zero or not form.fewest <= steps <= form.most:
        raise Malformed("predictor", f"number {number} over {steps} steps", 2)
    count = form.numbers + 2 * steps * form.replays
    if len(payload) < _HEAD.size + _NUMBER_BYTES * count:
        raise Malformed("predictor", f"{count} numbers in {len(payload)} bytes", _HEAD.size)
    return Parameters(Predictor(number), variant, steps, struct.unpack_from(f"<{count}d", payload, _HEAD.size))


def parameters_for(predictor: Predictor, hyper: Hyper, step: int, k: int, variant: int = 0) -> bytes:
    """Return the parameters for a chunk that an optimizer set like `hyper` made.

    Args:
        predictor: what to predict.
        step: the optimizer's own count at the chunk, not at its bases.
        k: how many of its steps lie between the bases and the chunk: 1 where the predictor is of one step, at most
            MOST_STEPS for moments and MOST_REPLAYED for idle weights.  WEIGHT_MIXED takes any, and beyond
            MOST_REPLAYED does not tell idle items apart.
        variant: a sum of PRODUCT, QUOTIENT and UNROUNDED.

    Raises:
        ValueError: not for so many steps, or no optimizer can be set like that.
    """
    form = _FORMS[predictor]
    steps = 0 if k > form.most and form.fewest == 0 else k
    if not (form.fewest <= steps <= form.most and 1 <= k <= step):
        raise ValueError(f"{predictor.name} over {k} steps up to step {step}")
    if not (0 <= hyper.beta1 < 1 and 0 < hyper.beta2 < 1):
        raise ValueError(f"betas {hyper.beta1} and {hyper.beta2}")
    try:
        numbers = _numbers(predictor, hyper, step, k, PRODUCT & variant)
        if form.replays:
            numbers += tuple(number for each in range(steps) for number in _rates(hyper, step - steps + 1 + each))
    except ArithmeticError as error:
        raise ValueError(f"{hyper} at step {step}") from error
    return Parameters(predictor, variant, steps, numbers).to_bytes()


def _rates(hyper: Hyper, step: int) -> tuple[float, float]:
    """Return lr / (1 - beta1^step) and sqrt(1 - beta2^step), as torch computes them."""
    return hyper.lr / (1 - hyper.beta1**step), (1 - hyper.beta2**step) ** 0.5


def _numbers(predictor: Predictor, hyper: Hyper, step: int, k: int, product: int) -> tuple[float, ...]:
    beta1 = hyper.beta1 if product else 1 - hyper.beta1
    match predictor:
        case Predictor.SECOND:
            return beta1, 1 - hyper.beta1, hyper.beta2, 1 - hyper.beta2
        case Predictor.WEIGHT:
            return hyper.kept, hyper.eps
        case Predictor.FIRST_IDLE:
            return (beta1,)
        case Predictor.SECOND_IDLE:
            return (hyper.beta2,)
        case Predictor.WEIGHT_IDLE:
            return hyper.kept, hyper.eps, beta1, hyper.fading
        case Predictor.SECOND_MIXED:
            return beta1, hyper.beta2, *_spread(hyper, k)
        case Predictor.WEIGHT_MIXED:
            replay = hyper.kept, hyper.eps, beta1, hyper.fading, hyper.beta1**k, hyper.fading**-k
            return *replay, hyper.kept**k, *_bridge(hyper, step, k)
        case Predictor.MOMENTUM:
            return (hyper.lr,)
        case Predictor.GREATEST:
            return ()
        case Predictor.WEIGHT_TOUCHED:
            size, root = _rates(hyper, step)
            return hyper.eps, size * root
        case Predictor.SECOND_TOUCHED:
            return 1 - hyper.beta1, 1 - hyper.beta2


def _spread(hyper: Hyper, k: int) -> tuple[float, float, float, float]:
    """Return the numbers of one step of SECOND that stands for k steps.

    What k gradients did to the first moment says how large they were, less surely the more there are: 1 / k of what
    they add to the second moment was found best for k of 2 to 10.
    """
    beta = hyper.beta1
    size = (1 - beta) * ((1 - beta ** (2 * k)) / (1 - beta**2)) ** 0.5
    return beta**k, size, hyper.beta2**k, (1 - hyper.beta2**k) / k


def _bridge(hyper: Hyper, step: int, k: int) -> tuple[float, float]:
    """Return how much of m and of m' goes into the sum of the k steps between them, step sizes and roots included.

    Given m at both ends, what is expected of m after j of the k steps is a combination of the two whose weights depend
    on beta1 alone (a first-order autoregression pinned at both ends).
    """
    beta, whole = hyper.beta1, 1 - hyper.beta1 ** (2 * k)
    before = after = 0.0
    for j in range(1, k + 1):
        size, root = _rates(hyper, step - k + j)
        before += size * root * beta**j * (1 - beta ** (2 * (k - j))) / whole
        after += size * root * beta ** (k - j) * (1 - beta ** (2 * j)) / whole
    return before, after
