"""Which weights steps without gradient leave where weight decay alone puts them, so that these steps need no replay.

A row of an embedding that no batch named for a while has so little of its first moment left that a step is less than
half a unit in the last place of the weight: subtracting it changes no bit.  That can be told for all the steps at once,
at a fraction of what one of them costs.  Let n steps be

    m <- m retained    v <- v fading    w <- w kept    w <- w - size m / (sqrt(v) / root + eps)

each operation rounded.  Where retained, fading and kept are within 0 to 1 and eps is not negative, then in every step
|m| is at most what it is before all, v at least fading^n times that (but for rounding, n 2^-24), and |w| at least what
decay alone leaves of it in the end, as rounding is monotonic.  So no step is greater than

    largest |size| |m| / (sqrt(v fading^n) / largest root)

and one below a quarter of a unit in the last place of |w|, that is 2^-precision |w| / 4 at least, changes nothing: it
is half of the smaller unit that is below a power of two.  Asked for is an eighth of that; the rest pays for every
rounding here, for a square root that is up to 6 % too great, and for what is lost where results are subnormal, given
that w and v are not tiny and numbers are within `_SANE`.  Whatever this cannot tell for sure (infinite, NaN, zero)
counts as moving, and is replayed.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstore.codecs.planes import WORD_TYPES
from chainstore.codecs.positions import Mask

Floats = NDArray[np.floating[Any]]

_SANE: Final = 2.0**-20  # numbers are between this and one over it
_LEAST: Final = 2.0**-100  # of weights and second moments
_NOTHING: Final = 2.0**-120  # times a step size: more than any first moment loses where it is subnormal
_SLACK: Final = 2.0**5  # the quarter of a unit, and an eighth


class Reach(NamedTuple):
    """What steps can do at most: a weight moves unless |m| times `factor`, and `least`, are below |w| sqrt(v)."""

    factor: np.floating[Any]
    least: np.floating[Any]


def reach_of(
    rates: Sequence[tuple[np.floating[Any], np.floating[Any]]],
    kept: float,
    eps: float,
    retained: float,
    fading: float,
    type: np.dtype[np.floating[Any]],
) -> Reach | None:
    """Return how far steps without gradient may reach; None where their numbers allow no such statement.

    Args:
        rates: of each step its size and root.
        kept, retained, fading: what one step leaves of w, m and v.
        type: float32 or float64.
    """
    size, root = max(abs(float(size)) for size, _ in rates), max(float(root) for _, root in rates)
    sane = all(_SANE <= float(root) <= 1 / _SANE and abs(float(size)) <= 1 / _SANE for size, root in rates)
    if not (sane and 0 < kept <= 1 and 0 <= retained <= 1 and 0.5 <= fading <= 1 and eps >= 0):
        return None
    scale = root * 2.0 ** (np.finfo(type).nmant + 1) * _SLACK / (fading ** len(rates)) ** 0.5
    return Reach(type.type(max(size, _SANE) * scale), type.type(_NOTHING * scale))


def moves(
    reach: Reach,
    weight: Floats,
    first: Floats,
    second: Floats,
    spares: tuple[Floats, Floats],
    masks: tuple[Mask, Mask],
) -> Mask:
    """Return which weights may move by more than their decay.

    Args:
        reach: of the steps.
        weight: after the decay of all of them.
        first, second: moments before them.
        spares, masks: as long as `weight`; the first mask is what is returned.
    """
    size, reached = spares
    found, small = masks
    root, unsigned = reached.view(WORD_TYPES[reached.itemsize]), WORD_TYPES[reached.itemsize].type
    bias, mantissa = reached.itemsize * 8 - 3, np.finfo(reached.dtype).nmant - 1
    # half the exponent and half the mantissa: the root of a normal number, or up to 6 % more
    np.right_shift(second.view(root.dtype), unsigned(1), out=root)
    np.add(root, unsigned((1 << bias) - (1 << mantissa)), out=root)
    np.abs(weight, out=size)
    np.less(size, _LEAST, out=small)
    np.multiply(reached, size, out=reached)
    np.abs(first, out=size)
    np.multiply(size, reach.factor, out=size)
    np.add(size, reach.least, out=size)
    np.less(size, reached, out=found)
    np.logical_not(found, out=found)  # so that what does not compare moves
    np.logical_or(found, small, out=found)
    np.greater_equal(second, _LEAST, out=small)
    np.logical_not(small, out=small)
    np.logical_or(found, small, out=found)
    return found
