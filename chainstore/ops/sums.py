"""Sums: what measuring finds out about two arrays, small enough to be kept for each chunk and added up."""

from dataclasses import dataclass
from math import isfinite, isnan, sqrt


@dataclass(slots=True)
class Sums:
    """What is known of some elements of both sides; of all finite ones, but for the counts.

    Attributes:
        aa, bb, dd, ab: sums of a * a, b * b, (b - a) ** 2, and a * b.
        max_a, max_b, max_d: largest absolute values.
        nan_a, nan_b, inf_a, inf_b: elements that are NaN, or infinite.
        changed_bytes: of b (of a where b has none) in chunks that hold a difference.
    """

    aa: float = 0.0
    bb: float = 0.0
    dd: float = 0.0
    ab: float = 0.0
    max_a: float = 0.0
    max_b: float = 0.0
    max_d: float = 0.0
    nan_a: int = 0
    nan_b: int = 0
    inf_a: int = 0
    inf_b: int = 0
    changed_bytes: int = 0

    def add(self, other: "Sums") -> None:
        """Take in what is known of some more elements."""
        for name in ("aa", "bb", "dd", "ab", "nan_a", "nan_b", "inf_a", "inf_b", "changed_bytes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("max_a", "max_b", "max_d"):
            setattr(self, name, max(getattr(self, name), getattr(other, name)))

    @property
    def cosine(self) -> float | None:
        """The cosine of the angle between a and b; None where one of them is 0."""
        length = sqrt(self.aa) * sqrt(self.bb)
        return max(-1.0, min(1.0, self.ab / length)) if length and isfinite(length) else None

    @property
    def relative(self) -> float | None:
        """|b - a| / |a|; inf where only |a| is 0, None where both are too large for a double."""
        if not self.aa:
            return float("inf") if self.dd else 0.0
        ratio = sqrt(self.dd) / sqrt(self.aa)
        return None if isnan(ratio) else ratio
