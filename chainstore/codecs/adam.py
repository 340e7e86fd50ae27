"""What an optimizer would have made of a block of items, to the last bit the same on every machine.

Everything is computed in separate numpy operations, each of which IEEE 754 says how to round: add, subtract, multiply,
divide, square root, compare, and conversion between float32 and float64.  No kernel of torch, no BLAS, no power: these
differ between machines.  Where torch uses a fused multiply-add, product and sum are taken in float64; of float32 items
the product is then exact, and the result is that of the fused operation but for sums that end in a tie.

Numbers that an optimizer holds in double precision are rounded to the type of the items before they are used, unless
the variant says UNROUNDED.  All of `Optimizer`, making one included, belongs inside `floating.same_everywhere()`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from chainstore.codecs.adam_parameters import PRODUCT, QUOTIENT, UNROUNDED, Parameters, Predictor
from chainstore.codecs.adam_rest import Reach, moves, reach_of
from chainstore.codecs.planes import WORD_TYPES, Array, Scratch
from chainstore.codecs.positions import Indices, Mask

Floats = NDArray[np.floating[Any]]
Number = np.floating[Any]

FLOAT_TYPES: Final[dict[int, np.dtype[Number]]] = {4: np.dtype("<f4"), 8: np.dtype("<f8")}
_DOUBLE: Final = FLOAT_TYPES[8]
_NAN: Final = {4: 0x7FC00000, 8: 0x7FF8000000000000}  # which of the many an operation makes depends on the processor

_UNSEEN: Final = 7  # blocks after one in which nearly all items move
_WORTH_A_LOOK: Final = 2  # steps: replaying a single one costs hardly more than the look
_NEAR: Final = 1024  # units in the last place; rounding 128 times moves a moment by fewer


class Optimizer:
    """Predicts blocks of items of one width; for one thread.

    Args:
        parameters: what to predict; hostile numbers lead to infinities and NaNs, and no further.
        width: bytes of an item, a key of `FLOAT_TYPES`.
        scratch: memory for what comes in between.
    """

    def __init__(self, parameters: Parameters, width: int, scratch: Scratch) -> None:
        self._type, self._scratch = FLOAT_TYPES[width], scratch
        self._steps = parameters.steps
        self._product, self._quotient = bool(parameters.variant & PRODUCT), bool(parameters.variant & QUOTIENT)
        self._unrounded = bool(parameters.variant & UNROUNDED)
        self._numbers = [self._type.type(number) for number in parameters.numbers]
        self._factors = list(parameters.numbers) if self._unrounded else [float(number) for number in self._numbers]
        self._rates = [(self._type.type(size), self._type.type(root)) for size, root in parameters.rates()]
        self._reach = self._reach_of(parameters)
        self._unseen = 0  # blocks of which nobody looks what hardly moves, as hardly anything does
        self._aside: list[Indices] | None = None  # items to replay later
        self._start = 0  # of this block
        self._predict = _PREDICTORS[parameters.predictor]

    def predict(self, bases: Sequence[Array], out: Array) -> None:
        """Set `out` to the bits of what is predicted from `bases`.

        Args:
            bases: words of as many chunks as the predictor takes, in their order, aligned, all as long as `out`.
            out: overlaps none of them.
        """
        floats = out.view(self._type)
        self._predict(self, floats, *(base.view(self._type) for base in bases))
        self._name_nans(floats)

    def predict_all(self, bases: Sequence[Array], out: Array, size: int) -> None:
        """Do what `predict` does, `size` items at a time, and what few of them need for all at once."""
        self._aside = [] if self._predict is Optimizer._weight_idle else None
        for self._start in range(0, out.size, size):
            block = slice(self._start, self._start + size)
            self.predict([base[block] for base in bases], out[block])
        aside = np.concatenate(self._aside) if self._aside else np.empty(0, np.int64)
        self._aside, floats = None, [base.view(self._type) for base in bases]
        for start in range(0, aside.size, size):
            chosen = aside[start : start + size]
            replayed = self._spare("replayed", chosen.size)
            self._replay(replayed, *self._gathered("live", chosen, *floats))
            self._name_nans(replayed)
            out.view(self._type)[chosen] = replayed

    def _name_nans(self, values: Floats) -> None:
        if values.size and np.isnan(values.max()):  # the greatest of some of which one is NaN is NaN
            strange = self._mask("strange", values.size)
            np.isnan(values, out=strange)
            values.view(WORD_TYPES[values.itemsize])[strange] = _NAN[values.itemsize]

    def _second(self, out: Floats, second: Floats, first: Floats, after: Floats) -> None:
        beta1, *others = self._factors
        self._grow(out, second, first, after, self._retained(beta1), *others)

    def _weight(self, out: Floats, weight: Floats, first: Floats, second: Floats) -> None:
        self._step(out, weight, first, second, *self._rates[0])

    def _first_idle(self, out: Floats, first: Floats) -> None:
        self._fade(first, self._retained(self._factors[0]), self._steps, out)

    def _second_idle(self, out: Floats, second: Floats) -> None:
        self._fade(second, self._factors[0], self._steps, out)

    def _weight_idle(self, out: Floats, weight: Floats, first: Floats, second: Floats) -> None:
        """Replay the steps; an item that never had a gradient only decays, and so does one that hardly moves."""
        live = self._mask("live", out.size)
        np.not_equal(first, 0, out=live)
        count = every = int(np.count_nonzero(live))
        looks = self._looks(every)
        if every == out.size and not looks:
            self._replay(out, weight, first, second)
            return
        self._fade(weight, self._factors[0], self._steps, out)
        if looks:
            np.logical_and(live, self._moves(out, first, second), out=live)
            count = int(np.count_nonzero(live))
            self._unseen = _UNSEEN if 4 * count > 3 * every else 0
        if not count:
            return
        chosen = np.flatnonzero(live)
        if self._aside is not None:
            self._aside.append(chosen + self._start)
            return
        replayed = self._spare("replayed", count)
        self._replay(replayed, *self._gathered("live", chosen, weight, first, second))
        out[chosen] = replayed

    def _second_mixed(self, out: Floats, second: Floats, first: Floats, after: Floats) -> None:
        beta1, beta2, *others = self._factors
        self._grow(out, second, first, after, *others)
        idle = self._idle(first, after, beta1, self._numbers[2])
        if idle.size:
            (square,) = self._gathered("idle", idle, second)
            self._fade(square, beta2, self._steps, square)
            out[idle] = square

    def _weight_mixed(self, out: Floats, weight: Floats, first: Floats, after: Floats, second: Floats) -> None:
        """Bridge the steps of an item that had gradients at one go; replay those of the others."""
        eps, near, back, kept, of_first, of_after = (self._numbers[place] for place in (1, 4, 5, 6, 7, 8))
        moved, divisor = self._spare("moved", out.size), self._spare("divisor", out.size)
        np.multiply(first, of_first, out=moved)
        np.multiply(after, of_after, out=divisor)
        np.add(moved, divisor, out=moved)
        np.sqrt(second, out=divisor)
        np.add(divisor, eps, out=divisor)
        np.divide(moved, divisor, out=moved)
        np.multiply(weight, kept, out=out)
        np.subtract(out, moved, out=out)
        if not self._steps:
            return
        idle = self._idle(first, after, self._factors[2], near)
        if idle.size:
            old, moment, square = self._gathered("idle", idle, weight, first, second)
            np.multiply(square, back, out=square)
            predicted = self._spare("predicted", idle.size)
            self._weight_idle(predicted, old, moment, square)
            out[idle] = predicted

    def _momentum(self, out: Floats, weight: Floats, after: Floats) -> None:
        np.copyto(out, weight)
        self._add_product(after, -self._numbers[0], out)

    def _greatest(self, out: Floats, greatest: Floats, second: Floats) -> None:
        grown = self._mask("grown", out.size)
        np.greater(second, greatest, out=grown)  # np.maximum may return either of two zeros
        np.copyto(out, greatest)
        np.copyto(out, second, where=grown)

    def _weight_touched(self, out: Floats, weight: Floats, first: Floats, after: Floats, second: Floats) -> None:
        np.copyto(out, weight)
        touched = self._touched(first, after)
        if touched.size:
            moved, divisor, base = self._gathered("touched", touched, after, second, weight)
            np.sqrt(divisor, out=divisor)
            np.add(divisor, self._numbers[0], out=divisor)
            np.divide(moved, divisor, out=moved)
            np.multiply(moved, -self._numbers[1], out=moved)
            out[touched] = np.add(base, moved, out=base)

    def _second_touched(self, out: Floats, second: Floats, first: Floats, after: Floats) -> None:
        np.copyto(out, second)
        touched = self._touched(first, after)
        if touched.size:
            gradient, moment, base = self._gathered("touched", touched, after, first, second)
            wide = self._wide(touched.size)
            np.subtract(gradient, moment, out=wide, dtype=_DOUBLE)
            np.divide(wide, self._factors[0], out=wide)
            np.add(wide, moment, out=wide, dtype=_DOUBLE)
            np.copyto(gradient, wide, casting="same_kind")
            np.multiply(gradient, gradient, out=gradient)
            np.subtract(gradient, base, out=gradient)
            np.multiply(gradient, self._numbers[1], out=gradient)
            out[touched] = np.add(base, gradient, out=base)

    def _touched(self, first: Floats, after: Floats) -> Indices:
        """Return which items had a gradient in a step that leaves the moments of all others alone."""
        touched = self._mask("touched", first.size)
        np.not_equal(first, after, out=touched)
        return np.flatnonzero(touched)

    def _grow(
        self,
        out: Floats,
        second: Floats,
        first: Floats,
        after: Floats,
        retained: float,
        rest1: float,
        beta2: float,
        rest2: float,
    ) -> None:
        """Take a step of the second moment with the gradient that explains what became of the first."""
        gradient, scaled = self._spare("gradient", out.size), self._spare("scaled", out.size)
        wide = self._wide(out.size)
        np.multiply(first, retained, out=wide, dtype=_DOUBLE)
        np.subtract(after, wide, out=wide, dtype=_DOUBLE)
        np.divide(wide, rest1, out=wide)
        np.copyto(gradient, wide, casting="same_kind")
        if self._unrounded:
            grown = self._wide(out.size, "grown")
            np.multiply(gradient, rest2, out=wide, dtype=_DOUBLE)
            np.multiply(wide, gradient, out=wide, dtype=_DOUBLE)
            np.multiply(second, beta2, out=grown, dtype=_DOUBLE)
            np.add(wide, grown, out=wide)
            np.copyto(out, wide, casting="same_kind")
            return
        np.multiply(second, self._type.type(beta2), out=out)
        if self._quotient:
            np.multiply(gradient, gradient, out=scaled)
            self._add_product(scaled, self._type.type(rest2), out)
        else:
            np.multiply(gradient, self._type.type(rest2), out=scaled)
            self._add_product(scaled, gradient, out)

    def _looks(self, count: int) -> bool:
        """Return whether looking which of `count` items hardly move is likely to pay."""
        if self._reach is None or not count:
            return False
        self._unseen -= 1
        return self._unseen < 0

    def _moves(self, weight: Floats, first: Floats, second: Floats) -> Mask:
        assert self._reach is not None
        count = weight.size
        spares = self._spare("size", count), self._spare("reached", count)
        masks = self._mask("moves", count), self._mask("small", count)
        return moves(self._reach, weight, first, second, spares, masks)

    def _replay(self, out: Floats, weight: Floats, first: Floats, second: Floats) -> None:
        """Take steps without gradient."""
        retained, fading = self._retained(self._factors[2]), self._factors[3]
        moment, square = self._spare("moment", out.size), self._spare("square", out.size)
        np.copyto(out, weight)
        for size, root in self._rates:
            self._fade(first, retained, 1, moment)
            self._fade(second, fading, 1, square)
            self._step(out, out, moment, square, size, root)
            first, second = moment, square

    def _step(self, out: Floats, weight: Floats, first: Floats, second: Floats, size: Number, root: Number) -> None:
        """Move weights by the moments after the step; `out` may be `weight`."""
        divisor, moved = self._spare("divisor", out.size), self._spare("moved", out.size)
        np.sqrt(second, out=divisor)
        np.divide(divisor, root, out=divisor)
        np.add(divisor, self._numbers[1], out=divisor)
        if self._factors[0] != 1 or out is not weight:
            self._fade(weight, self._factors[0], 1, out)
        if self._quotient:
            np.divide(first, divisor, out=moved)
            self._add_product(moved, -size, out)
        else:
            np.multiply(first, size, out=moved)
            np.divide(moved, divisor, out=moved)
            np.subtract(out, moved, out=out)

    def _idle(self, first: Floats, after: Floats, beta1: float, near_factor: Number) -> Indices:
        """Return which items had no gradient: their first moment is, to the bit, what fading alone makes of it.

        Fading is exact and slow, so it is done only where one multiplication that stands for all the steps comes near
        enough.
        """
        unsigned = WORD_TYPES[self._type.itemsize]
        near = self._spare("near", first.size)
        np.multiply(first, near_factor, out=near)
        distance = near.view(unsigned)
        np.subtract(distance, after.view(unsigned), out=distance)
        np.add(distance, unsigned.type(_NEAR), out=distance)
        hopeful = self._mask("hopeful", first.size)
        np.less_equal(distance, unsigned.type(2 * _NEAR), out=hopeful)
        chosen = np.flatnonzero(hopeful)
        if not chosen.size:
            return chosen
        faded, expected = self._gathered("hopeful", chosen, first, after)
        self._fade(faded, self._retained(beta1), self._steps, faded)
        idle: Indices = chosen[faded == expected]
        return idle

    def _reach_of(self, parameters: Parameters) -> Reach | None:
        if parameters.predictor not in (Predictor.WEIGHT_IDLE, Predictor.WEIGHT_MIXED) or self._steps < _WORTH_A_LOOK:
            return None
        kept, _, beta1, fading = self._factors[:4]
        return reach_of(self._rates, kept, float(self._numbers[1]), self._retained(beta1), fading, self._type)

    def _retained(self, beta1: float) -> float:
        """Return what a step without gradient leaves of a first moment; exact."""
        return beta1 if self._product else 1.0 - beta1

    def _fade(self, values: Floats, factor: float, steps: int, out: Floats) -> None:
        """Multiply `steps` times, at least once, by a float64 and round each product; `out` may be `values`."""
        rounded = self._type.type(factor)
        if float(rounded) == factor:  # a product of two float32 is exact in float64: this way rounds alike
            for _ in range(steps):
                np.multiply(values, rounded, out=out)
                values = out
            return
        wide = self._wide(out.size)
        for _ in range(steps):
            np.copyto(wide, values)
            np.multiply(wide, factor, out=wide)
            np.copyto(out, wide, casting="same_kind")
            values = out

    def _add_product(self, left: Floats, right: Floats | Number, out: Floats) -> None:
        """Add left * right to `out`, both operations in float64."""
        wide = self._wide(out.size)
        np.multiply(left, right, out=wide, dtype=_DOUBLE)
        np.add(wide, out, out=wide, dtype=_DOUBLE)
        np.copyto(out, wide, casting="same_kind")

    def _gathered(self, name: str, chosen: Indices, *values: Floats) -> list[Floats]:
        pieces = [self._spare(f"{name} {place}", chosen.size) for place in range(len(values))]
        for piece, value in zip(pieces, values, strict=True):
            value.take(chosen, out=piece, mode="clip")
        return pieces

    def _spare(self, name: str, count: int) -> Floats:
        return self._scratch.take(name, count, self._type.itemsize).view(self._type)

    def _wide(self, count: int, name: str = "wide") -> Floats:
        return self._scratch.take(name, count, 8).view(_DOUBLE)

    def _mask(self, name: str, count: int) -> Mask:
        return self._scratch.take(f"mask {name}", count).view(np.bool_)


_PREDICTORS: Final[dict[Predictor, Callable[..., None]]] = {
    Predictor.SECOND: Optimizer._second,
    Predictor.WEIGHT: Optimizer._weight,
    Predictor.FIRST_IDLE: Optimizer._first_idle,
    Predictor.SECOND_IDLE: Optimizer._second_idle,
    Predictor.WEIGHT_IDLE: Optimizer._weight_idle,
    Predictor.SECOND_MIXED: Optimizer._second_mixed,
    Predictor.WEIGHT_MIXED: Optimizer._weight_mixed,
    Predictor.MOMENTUM: Optimizer._momentum,
    Predictor.GREATEST: Optimizer._greatest,
    Predictor.WEIGHT_TOUCHED: Optimizer._weight_touched,
    Predictor.SECOND_TOUCHED: Optimizer._second_touched,
}
