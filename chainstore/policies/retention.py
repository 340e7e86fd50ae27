"""Retention: which snapshots a chain keeps, and why.

Rules are ORed: a snapshot stays if any of them wants it.  Commits are looked at from the newest to the oldest.
`daily=7` keeps the newest snapshot of each of the last seven days that have one; days without snapshots do not count,
and where fewer than seven days have one, the oldest snapshot of all stays as well, so that a chain never gets shorter
than it has to.  `within` counts back from the newest snapshot, not from now: a run that rested for a month loses
nothing.

Source: restic, whose rules of these names decide the same.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from math import isnan
from typing import Literal, Protocol

from chainstore.errors import InvalidInput
from chainstore.ids import ObjectId
from chainstore.policies.spans import format_span

ALL = -1  # as the number of a rule: every one


class Candidate(Protocol):
    """What a rule looks at; a `Commit` has it."""

    @property
    def id(self) -> ObjectId: ...
    @property
    def time(self) -> datetime: ...
    @property
    def step(self) -> int | None: ...
    @property
    def metrics(self) -> Mapping[str, float]: ...


@dataclass(frozen=True, slots=True)
class Best:
    """The rule that keeps the best snapshots by a metric; of equals, the newest.

    Attributes:
        metric: its name; commits that lack it, or have NaN, are never best.
        count: how many; `ALL` is every one that has the metric.
        mode: whether less is better ("min") or more ("max").
    """

    metric: str
    count: int = 1
    mode: Literal["min", "max"] = "min"

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str) or not self.metric:
            raise InvalidInput(f"best names a metric, not {self.metric!r}")
        _check_count("best", self.count)
        if self.mode not in ("min", "max"):
            raise InvalidInput(f"best is by 'min' or 'max', not {self.mode!r}")


@dataclass(frozen=True, slots=True)
class Retention:
    """Which snapshots stay.  It protects nothing by itself: tips and tags are its caller's to keep.

    `keep` tells which of some commits a policy would keep and why; nothing is dropped by it:

        Retention(last=10, daily=7).keep(list(repo.log()), datetime.now(UTC))

    Attributes:
        last: how many of the newest.
        hourly, daily, weekly, monthly, yearly: of how many hours, days, ISO weeks, months, years that have snapshots
            the newest one; in the time zone of `now`.
        every_steps: those whose step is a multiple of it.
        best: by a metric.
        within: those that are less than this older than the newest.
        tags: those that carry a tag of that name; `*` and `?` as in file names.
        first: the oldest one.
        group_by: "branch" applies the rules to each branch by itself, and a snapshot stays if any branch keeps it;
            "none" applies them once to all.

    A number is at least 1, or `ALL` (-1).

    Raises:
        InvalidInput: there is no rule at all (it would drop everything), or a number makes no sense.
    """

    last: int | None = None
    every_steps: int | None = None
    best: Best | None = None
    hourly: int | None = None
    daily: int | None = None
    weekly: int | None = None
    monthly: int | None = None
    yearly: int | None = None
    within: timedelta | None = None
    tags: tuple[str, ...] = ()
    first: bool = False
    group_by: Literal["branch", "none"] = "branch"

    def __post_init__(self) -> None:
        for name in ("last", *_BUCKETS):
            _check_count(name, getattr(self, name))
        if self.every_steps is not None and (type(self.every_steps) is not int or self.every_steps < 1):
            raise InvalidInput(f"every_steps is a number from 1 on, not {self.every_steps!r}")
        if self.within is not None and self.within <= timedelta(0):
            raise InvalidInput(f"within is a length of time, not {self.within}")
        if isinstance(self.tags, str):
            raise InvalidInput(f"tags are a tuple of names, not the text {self.tags!r}")
        object.__setattr__(self, "tags", tuple(self.tags))  # a list would not compare equal
        if self.group_by not in ("branch", "none"):
            raise InvalidInput(f"group_by is 'branch' or 'none', not {self.group_by!r}")
        rules = [getattr(self, field.name) for field in fields(self) if field.name != "group_by"]
        if all(rule in (None, (), False) for rule in rules):
            raise InvalidInput("a retention without a rule would drop everything", hint="say last=10 or daily=7")

    def keep(
        self,
        commits: Iterable[Candidate],
        now: datetime,
        *,
        tags: Mapping[str, ObjectId] | None = None,
        branches: Mapping[str, Collection[ObjectId]] | None = None,
    ) -> dict[ObjectId, str]:
        """Return the ids of the commits whose snapshots stay, newest first, each with the reasons as text.

        The arguments are those of `reasons`, and so are the errors.
        """
        found = self.reasons(commits, now, tags=tags, branches=branches)
        return {id: ", ".join(reasons) for id, reasons in found.items()}

    def reasons(
        self,
        commits: Iterable[Candidate],
        now: datetime,
        *,
        tags: Mapping[str, ObjectId] | None = None,
        branches: Mapping[str, Collection[ObjectId]] | None = None,
    ) -> dict[ObjectId, tuple[str, ...]]:
        """Return the ids of the commits whose snapshots stay, newest first, each with the rules that want it.

        Args:
            commits: in any order; of equal times, the one that comes first counts as the newer.
            now: with a time zone, which the calendar rules use; commits that claim to be from later do not count as
                the newest for `within`.
            tags: name -> commit.
            branches: name -> its commits.  None, or `group_by="none"`: all are of one chain.

        Raises:
            InvalidInput: `now` has no time zone.
        """
        if now.tzinfo is None:
            raise InvalidInput("now needs a time zone", hint="datetime.now(timezone.utc)")
        chain = sorted({commit.id: commit for commit in commits}.values(), key=lambda commit: commit.time, reverse=True)
        if self.group_by == "none" or branches is None:
            groups = [("", chain)]
        else:
            groups = [(f" of {name}", [c for c in chain if c.id in ids]) for name, ids in branches.items()]
        reasons: dict[ObjectId, list[str]] = {}
        for of, group in groups:
            for commit, reason in self._of_chain(group, now):
                reasons.setdefault(commit.id, []).append(reason + of)
        for commit, reason in self._tagged(chain, tags or {}):
            reasons.setdefault(commit.id, []).append(reason)
        return {commit.id: tuple(reasons[commit.id]) for commit in chain if commit.id in reasons}

    def _of_chain(self, chain: Sequence[Candidate], now: datetime) -> Iterator[tuple[Candidate, str]]:
        """Yield the commits of one chain, newest first, that some rule keeps, with that rule."""
        if not chain:
            return
        if self.last is not None:
            yield from ((commit, "last") for commit in (chain if self.last == ALL else chain[: self.last]))
        for name, bucket in _BUCKETS.items():
            yield from _by_calendar(chain, name, getattr(self, name), bucket, now)
        if self.within is not None:
            newest = max((c.time for c in chain if c.time <= now), default=now)
            yield from ((c, f"within {format_span(self.within)}") for c in chain if newest - c.time < self.within)
        if self.every_steps is not None:
            every = self.every_steps
            yield from ((c, f"every {every} steps") for c in chain if c.step is not None and c.step % every == 0)
        if self.best is not None:
            yield from _best(chain, self.best)
        if self.first:
            yield chain[-1], "first"

    def _tagged(self, chain: Sequence[Candidate], tags: Mapping[str, ObjectId]) -> Iterator[tuple[Candidate, str]]:
        for name in sorted(tags):
            if any(fnmatchcase(name, pattern) for pattern in self.tags):
                yield from ((commit, f"tag {name}") for commit in chain if commit.id == tags[name])


_Bucket = Callable[[datetime], tuple[int, ...]]
_BUCKETS: dict[str, _Bucket] = {
    "hourly": lambda time: (time.year, time.month, time.day, time.hour, _offset(time)),
    "daily": lambda time: (time.year, time.month, time.day),
    "weekly": lambda time: time.isocalendar()[:2],
    "monthly": lambda time: (time.year, time.month),
    "yearly": lambda time: (time.year,),
}


def _offset(time: datetime) -> int:
    """Return seconds east of Greenwich: the hour that summer time repeats is two hours."""
    return round((time.utcoffset() or timedelta()).total_seconds())


def _by_calendar(
    chain: Sequence[Candidate], name: str, count: int | None, bucket: _Bucket, now: datetime
) -> Iterator[tuple[Candidate, str]]:
    left, seen = count or 0, None
    for commit in chain:
        if not left:
            return
        found = bucket(commit.time.astimezone(now.tzinfo))
        if found != seen:
            yield commit, name
        elif commit is chain[-1]:
            yield commit, f"oldest {name}"
        else:
            continue
        seen, left = found, left - 1 if left > 0 else left


def _best(chain: Sequence[Candidate], rule: Best) -> Iterator[tuple[Candidate, str]]:
    rated = [c for c in chain if not isnan(c.metrics.get(rule.metric, float("nan")))]
    sign = 1 if rule.mode == "min" else -1
    rated.sort(key=lambda commit: sign * commit.metrics[rule.metric])
    text = f"best {rule.metric}"
    yield from ((commit, text) for commit in (rated if rule.count == ALL else rated[: rule.count]))


def _check_count(name: str, count: object) -> None:
    if count is not None and (type(count) is not int or (count < 1 and count != ALL)):
        raise InvalidInput(f"{name} is a number from 1 on, or -1 for every one, not {count!r}")
