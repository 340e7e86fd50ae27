"""Section 9 of docs/format.md, tag 5, read again: predictions one item at a time, in plain Python and its floats.

Nothing of chainstore is imported, nor numpy: what this and the codec agree on is what the document says.
"""

import math
import struct
from ctypes import c_float
from itertools import islice


def divide(a, b):
    if b:
        return a / b
    return math.nan if not a or math.isnan(a) or math.isnan(b) else math.copysign(math.inf, a) * math.copysign(1, b)


def root_of(x):
    return math.sqrt(x) if x >= 0 else math.nan


class Items:
    """Arithmetic of items of 4 or 8 bytes.  Rounding binary64 once more gives the right binary32 for + - * / sqrt."""

    def __init__(self, width):
        self.code, self.bits = ("<f", "<I") if width == 4 else ("<d", "<Q")
        self.width, self.nan = width, 0x7FC00000 if width == 4 else 0x7FF8000000000000

    def item(self, x):
        return c_float(x).value if self.width == 4 else x

    def word(self, x):
        return self.nan if x != x else struct.unpack(self.bits, struct.pack(self.code, x))[0]

    def all(self, data):
        return [value for (value,) in struct.iter_unpack(self.code, data[: len(data) // self.width * self.width])]


class Predictor:
    def __init__(self, payload, width):
        self.kind, self.variant, self.steps, zero = payload[:4]
        assert not zero and self.variant < 8, "a predictor is not known here"
        self.items = Items(width)
        counts = {1: (4, 0), 2: (2, 2), 3: (1, 0), 4: (1, 0), 5: (4, 2), 6: (6, 0), 7: (9, 2), 8: (1, 0), 9: (0, 0)}
        counts |= {10: (2, 0), 11: (2, 0)}
        plain, each = counts[self.kind]
        self.nbytes = 4 + 8 * (plain + each * self.steps)
        exact = [x for (x,) in struct.iter_unpack("<d", payload[4 : self.nbytes])]
        numbers = [self.items.item(x) for x in exact]
        self.factors = exact[:plain] if self.variant & 4 else numbers[:plain]
        self.numbers, self.rates = numbers[:plain], list(zip(numbers[plain::2], numbers[plain + 1 :: 2], strict=True))

    def r(self, beta1):
        return beta1 if self.variant & 1 else 1 - beta1

    def fade(self, x, f, k):
        for _ in range(k):
            x = self.items.item(x * f)
        return x

    def step(self, w, m, v, size, root):
        item, kept, eps = self.items.item, self.factors[0], self.numbers[1]
        d = item(item(divide(item(root_of(v)), root)) + eps)
        if self.variant & 2:
            return item(item(divide(m, d)) * -size + item(w * kept))
        return item(item(w * kept) - item(divide(item(m * size), d)))

    def grow(self, v, m, after, f, rest1, beta2, rest2):
        item = self.items.item
        g = item(divide(after - m * f, rest1))
        if self.variant & 4:
            return item(g * rest2 * g + v * beta2)
        if self.variant & 2:
            return item(item(g * g) * rest2 + item(v * beta2))
        return item(item(g * rest2) * g + item(v * beta2))

    def idle(self, m, after, beta1, near):
        # Bits of what may be another NaN are never near those of a number.
        distance = self.items.word(self.items.item(m * near)) - self.items.word(after)
        close = (distance + 1024) % (1 << 8 * self.items.width) <= 2048
        return close and self.fade(m, self.r(beta1), self.steps) == after

    def replay(self, w, m, v):
        kept, _, beta1, fading = self.factors[:4]
        if m == 0:
            return self.fade(w, kept, self.steps)
        for size, root in self.rates:
            m, v = self.fade(m, self.r(beta1), 1), self.items.item(v * fading)
            w = self.step(w, m, v, size, root)
        return w

    def bridge(self, w, m, after, v):
        item, (_, eps, _, _, near, back, across, first, last) = self.items.item, self.numbers
        if self.steps and self.idle(m, after, self.factors[2], near):
            return self.replay(w, m, item(v * back))
        moved = divide(item(item(m * first) + item(after * last)), item(item(root_of(v)) + eps))
        return item(item(w * across) - item(moved))

    def mixed(self, v, m, after):
        beta1, beta2, *others = self.factors
        if self.idle(m, after, beta1, self.numbers[2]):
            return self.fade(v, beta2, self.steps)
        return self.grow(v, m, after, *others)

    def moved(self, w, m, after, v):
        item, (eps, size) = self.items.item, self.numbers
        return w if m == after else item(w + item(item(divide(after, item(item(root_of(v)) + eps))) * -size))

    def grown(self, v, m, after):
        item, g = self.items.item, self.items.item(divide(after - m, self.factors[0]) + m)
        return v if m == after else item(v + item(item(item(g * g) - v) * self.numbers[1]))

    def one(self, *bases):
        factors, item = self.factors, self.items.item
        return {
            1: lambda v, m, after: self.grow(v, m, after, self.r(factors[0]), *factors[1:]),
            2: lambda w, m, v: self.step(w, m, v, *self.rates[0]),
            3: lambda m: self.fade(m, self.r(factors[0]), self.steps),
            4: lambda v: self.fade(v, factors[0], self.steps),
            5: self.replay,
            6: self.mixed,
            7: self.bridge,
            8: lambda w, m: item(m * -self.numbers[0] + w),
            9: lambda x, v: v if v > x else x,
            10: self.moved,
            11: self.grown,
        }[self.kind](*bases)

    def words(self, bases):
        """Return what is predicted of each item, as bits."""
        return [self.items.word(self.one(*each)) for each in zip(*map(self.items.all, bases), strict=True)]


def adam(payload, bases, planes):
    """Decode a payload of tag 5; `planes` decodes one of tag 1, given it and the length of what it holds."""
    width = payload[Predictor(payload, 4).nbytes] & 31
    assert width in (4, 8), "items of another width"
    predictor, size = Predictor(payload, width), 8 * width
    residual = planes(payload[predictor.nbytes :], len(bases[0]))
    folded = [r for (r,) in struct.iter_unpack(predictor.items.bits, residual[: len(residual) // width * width])]
    differences = (r // 2 if r % 2 == 0 else -(r + 1) // 2 for r in folded)
    words = zip(predictor.words(bases), islice(differences, len(folded)), strict=True)
    plain = b"".join(struct.pack(predictor.items.bits, (word + d) % (1 << size)) for word, d in words)
    return plain + residual[len(plain) :]
