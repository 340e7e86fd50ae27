"""Registry: counters, gauges and histograms, for many threads.

A metric is a family: a name, what it means, names of labels.  With labels, `of(cause="preemption")` gives the one
that counts; without, the family counts itself.  An update takes a lock of that one alone and less than 1 us; whoever
updates at every step keeps what `of` gave.  A signal handler may count: the lock is one that its thread may take again.

    >>> registry = Registry()
    >>> stall = registry.histogram("stall_seconds", "What a snapshot stalls.", buckets=(0.1, 1.0))
    >>> stall.observe(0.3)
    >>> stall.read()
    Reading(buckets=((0.1, 0), (1.0, 1), (inf, 1)), sum=0.3, count=1)
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf, isnan
from threading import RLock
from typing import Generic, Literal, TypeVar, cast

from chainstore.errors import InvalidInput

SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)  # a stall to a slow network

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_KIND = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Reading:
    """A histogram at one moment: cumulative counts by upper bound, the last one infinite."""

    buckets: tuple[tuple[float, int], ...]
    sum: float
    count: int


class CounterValue:
    """One number that only grows."""

    __slots__ = ("_lock", "_value")

    def __init__(self) -> None:
        self._lock, self._value = RLock(), 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Add an amount.

        Raises:
            InvalidInput: it is negative or NaN.
        """
        if not amount >= 0:
            raise InvalidInput(f"a counter only grows, not by {amount!r}")
        with self._lock:
            self._value += amount

    def read(self) -> float:
        return self._value


class GaugeValue:
    """One number that goes up and down."""

    __slots__ = ("_lock", "_value")

    def __init__(self) -> None:
        self._lock, self._value = RLock(), 0.0

    def set(self, value: float) -> None:
        self._value = float(value)  # one store of one reference: needs no lock

    def inc(self, amount: float = 1.0) -> None:
        with self._lock:
            self._value += amount

    def dec(self, amount: float = 1.0) -> None:
        self.inc(-amount)

    def read(self) -> float:
        return self._value


class HistogramValue:
    """How often which sizes were seen."""

    __slots__ = ("_bounds", "_counts", "_lock", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._lock, self._bounds = RLock(), bounds
        self._counts, self._sum = [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        """Count a value into its bucket; NaN into the last."""
        at = len(self._bounds) if isnan(value) else bisect_left(self._bounds, value)
        with self._lock:
            self._counts[at] += 1
            self._sum += value

    def read(self) -> Reading:
        with self._lock:
            counts, total = list(self._counts), self._sum
        cumulative = tuple(accumulate(counts))
        return Reading(tuple(zip((*self._bounds, inf), cumulative, strict=True)), total, cumulative[-1])


Value = TypeVar("Value", CounterValue, GaugeValue, HistogramValue)


class Family(Generic[Value]):
    """A metric with everything its labels tell apart.

    Attributes:
        name, help: for Prometheus.
        kind: "counter", "gauge" or "histogram".
        labels: names, in order.
    """

    kind: _KIND

    def __init__(self, name: str, help: str, labels: Sequence[str], make: Callable[[], Value]) -> None:
        self.name, self.help, self.labels = name, help, tuple(labels)
        self._make: Callable[[], Value] = make
        self._lock = RLock()
        self._values: dict[tuple[str, ...], Value] = {}
        if not self.labels:
            self._values[()] = make()

    def of(self, **labels: object) -> Value:
        """Return what counts for these labels, made at 0 where it is new.

        Raises:
            InvalidInput: they are not exactly the labels of this metric.
        """
        if labels.keys() != set(self.labels):
            raise InvalidInput(f"{self.name} has the labels {', '.join(self.labels) or 'none'}, not {sorted(labels)}")
        key = tuple(str(labels[name]) for name in self.labels)
        with self._lock:
            if key not in self._values:
                self._values[key] = self._make()
            return self._values[key]

    def values(self) -> list[tuple[tuple[str, ...], Value]]:
        """Return what there is, by values of labels, in order."""
        with self._lock:
            return sorted(self._values.items(), key=lambda item: item[0])

    @property
    def _alone(self) -> Value:
        try:
            return self._values[()]
        except KeyError:
            raise InvalidInput(f"{self.name} counts by {', '.join(self.labels)}: say of(...) first") from None


class Counter(Family[CounterValue]):
    """A number that only grows; its name ends in `_total`."""

    kind: _KIND = "counter"

    def inc(self, amount: float = 1.0) -> None:
        self._alone.inc(amount)

    def read(self) -> float:
        return self._alone.read()


class Gauge(Family[GaugeValue]):
    """A number that goes up and down."""

    kind: _KIND = "gauge"

    def set(self, value: float) -> None:
        self._alone.set(value)

    def inc(self, amount: float = 1.0) -> None:
        self._alone.inc(amount)

    def dec(self, amount: float = 1.0) -> None:
        self._alone.dec(amount)

    def read(self) -> float:
        return self._alone.read()


class Histogram(Family[HistogramValue]):
    """Sizes, counted in buckets."""

    kind: _KIND = "histogram"

    def observe(self, value: float) -> None:
        self._alone.observe(value)

    def read(self) -> Reading:
        return self._alone.read()


def _is_label(name: str) -> bool:
    return bool(_LABEL.fullmatch(name)) and name != "le"  # which buckets have


AnyFamily = Counter | Gauge | Histogram


class Registry:
    """The metrics of one process or manager, by name.  Asking for one that is there gives the same.

    Args:
        labels: names and values that every line carries, such as the branch: what tells two runs on one host apart.

    Raises:
        InvalidInput: a label is none that Prometheus takes.
    """

    def __init__(self, labels: Mapping[str, object] | None = None) -> None:
        self.labels = {name: str(value) for name, value in (labels or {}).items()}
        if not all(_is_label(name) for name in self.labels):
            raise InvalidInput(f"{tuple(self.labels)} are no labels that Prometheus takes")
        self._lock = RLock()
        self._families: dict[str, AnyFamily] = {}

    def counter(self, name: str, help: str, labels: Sequence[str] = ()) -> Counter:
        """Return a counter.

        Raises:
            InvalidInput: the name or a label is none that Prometheus takes, or the name means something else here.
        """
        if not name.endswith("_total"):
            raise InvalidInput(f"the name of a counter ends in _total, not {name!r}")
        return cast(Counter, self._add(Counter(name, help, labels, CounterValue)))

    def gauge(self, name: str, help: str, labels: Sequence[str] = ()) -> Gauge:
        """Return a gauge; errors as of `counter`."""
        return cast(Gauge, self._add(Gauge(name, help, labels, GaugeValue)))

    def histogram(
        self, name: str, help: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = SECONDS
    ) -> Histogram:
        """Return a histogram with these upper bounds; errors as of `counter`, and bounds that do not rise."""
        bounds = tuple(float(bound) for bound in buckets if bound != inf)
        if not bounds or any(not low < high for low, high in pairwise(bounds)):
            raise InvalidInput(f"the buckets of {name} are numbers that rise, not {tuple(buckets)}")
        return cast(Histogram, self._add(Histogram(name, help, labels, lambda: HistogramValue(bounds))))

    def __iter__(self) -> Iterator[AnyFamily]:
        with self._lock:
            families = list(self._families.values())
        return iter(families)

    def _add(self, family: AnyFamily) -> AnyFamily:
        wrong = [label for label in family.labels if not _is_label(label) or label in self.labels]
        if not _NAME.fullmatch(family.name) or wrong or len(set(family.labels)) < len(family.labels):
            raise InvalidInput(f"{family.name!r} with labels {family.labels} is no metric that Prometheus takes")
        with self._lock:
            found = self._families.setdefault(family.name, family)
        if (found.kind, found.labels) != (family.kind, family.labels):
            raise InvalidInput(f"{family.name} is a {found.kind} by {found.labels} already")
        return found
