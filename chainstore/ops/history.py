"""History: commits in order, and the ways of naming one.

A revision is, tried in this order: a ref, a tag, the first 7 or more digits of an id; or `latest`, `step:1200`,
`min:loss`, `max:acc`; each may be followed by `~3`, `^2`, `@{1}`, `@{2h ago}`.
"""

import heapq
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from chainstore.errors import InvalidInput, RevisionNotFound
from chainstore.ids import ObjectId
from chainstore.model.change import ReflogLine
from chainstore.model.commit import Commit, decode_commit
from chainstore.odb.local import LocalDatabase
from chainstore.refs import HEAD, HEADS, TAGS, nearest_names, short_name

_SUFFIX = re.compile(r"~([0-9]{0,9})|\^([0-9]{0,9})|@\{([^}]*)\}")
_NUMBER = re.compile(r"[0-9]{1,9}")
_AGO = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(s|m|h|d|w)[a-z]*(?:\s+ago)?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_PREFIX = re.compile(r"[0-9a-f]{7,64}")


def read_commit(db: LocalDatabase, id: ObjectId) -> Commit:
    """Return a commit, verified.

    Raises:
        IdMismatch: it is missing or damaged.
    """
    return decode_commit(id, bytes(db.read(id)))


def ancestors(db: LocalDatabase, *starts: ObjectId) -> Iterator[Commit]:
    """Yield commits and all their ancestors, each once, newest first.

    A commit never comes before the child that led to it, whatever the clocks said; where clocks disagreed on two sides
    of a merge, it may come before a child on the other side.
    """
    seen = set(starts)
    heap: list[tuple[float, int, Commit]] = []
    for order, start in enumerate(starts):
        commit = read_commit(db, start)
        heapq.heappush(heap, (-commit.time.timestamp(), order, commit))
    count = len(starts)
    while heap:
        _, _, commit = heapq.heappop(heap)
        yield commit
        for parent in commit.parents:
            if parent not in seen:
                seen.add(parent)
                count += 1
                below = read_commit(db, parent)
                heapq.heappush(heap, (max(-below.time.timestamp(), -commit.time.timestamp()), count, below))


def first_parents(db: LocalDatabase, start: ObjectId) -> Iterator[Commit]:
    """Yield a commit, its first parent, and so on."""
    current: ObjectId | None = start
    while current is not None:
        commit = read_commit(db, current)
        yield commit
        current = commit.parents[0] if commit.parents else None


def merge_base(db: LocalDatabase, a: ObjectId, b: ObjectId) -> Commit | None:
    """Return the newest commit that both descend from, or None where they share none."""
    of_a = {commit.id for commit in ancestors(db, a)}
    return next((commit for commit in ancestors(db, b) if commit.id in of_a), None)


@dataclass(frozen=True, slots=True)
class Names:
    """What revisions are resolved against: the branch of whoever asks, and the time of asking.

    Attributes:
        branch: full name of the current branch; None where HEAD is detached.
        now_us: microseconds since 1970, for `@{2h ago}`.
    """

    branch: str | None
    now_us: Callable[[], int]


def resolve(db: LocalDatabase, revision: str, names: Names) -> ObjectId:
    """Return the commit that a revision names.

    Raises:
        RevisionNotFound: there is none; `nearest` holds the names that come closest.
    """
    if not revision:  # a variable that was never set, more often than somebody who means HEAD
        raise RevisionNotFound(revision, why="it is empty; HEAD is the current branch's tip")
    match = _SUFFIX.search(revision)
    base, rest = (revision, "") if match is None else (revision[: match.start()], revision[match.start() :])
    if rest.startswith("@{"):
        found = _SUFFIX.match(rest)
        assert found is not None
        id = _from_reflog(db, base or HEAD, found.group(3), names, revision)
        rest = rest[found.end() :]
    else:
        id = _base(db, base or HEAD, names, revision)
    while rest:
        found = _SUFFIX.match(rest)
        if found is None or found.group(3) is not None:
            raise RevisionNotFound(revision, why=f"{rest!r} makes no sense after a revision")
        id = _step(db, id, found, revision)
        rest = rest[found.end() :]
    return id


def head_of(db: LocalDatabase, names: Names) -> ObjectId | None:
    """Return the tip that HEAD means for whoever asks, or None where nothing was committed yet."""
    with db.view() as view:
        row = view.ref(names.branch if names.branch is not None else HEAD)
    return row.target if row is not None and isinstance(row.target, ObjectId) else None


def _base(db: LocalDatabase, name: str, names: Names, revision: str) -> ObjectId:
    for rule in (_by_ref, _by_digits, _by_step, _by_metric):
        id = rule(db, name, names, revision)
        if id is not None:
            return id
    known = [short_name(row.name) for row in db.refs()]
    why = "nothing was committed yet" if name in (HEAD, "latest") or not known else ""
    raise RevisionNotFound(revision, nearest_names(name, [each for each in known if each != name]), why)


def _by_ref(db: LocalDatabase, name: str, names: Names, revision: str) -> ObjectId | None:
    if name in (HEAD, "@", "latest"):
        return head_of(db, names)
    with db.view() as view:
        for full in (HEADS + name, TAGS + name, name):
            row = view.ref(full)
            if row is not None and isinstance(row.target, ObjectId):
                return row.target
    return None


def _by_digits(db: LocalDatabase, name: str, names: Names, revision: str) -> ObjectId | None:
    if not _PREFIX.fullmatch(name):
        return None
    low = bytes.fromhex(name.ljust(64, "0"))
    found = db.commits_from(low, name)
    if len(found) > 1:
        raise RevisionNotFound(revision, [id.hex()[: len(name) + 4] for id in found[:3]], "more than one id starts so")
    return found[0] if found else None


def _by_step(db: LocalDatabase, name: str, names: Names, revision: str) -> ObjectId | None:
    if not name.startswith("step:"):
        return None
    try:
        step = int(name[5:])
    except ValueError:
        raise RevisionNotFound(revision, why="a step is a whole number") from None
    seen = []
    for commit in _from_head(db, names):
        if commit.step == step:
            return commit.id
        if commit.step is not None:
            seen.append(commit.step)
    near = sorted(set(seen), key=lambda other: abs(other - step))[:2]
    raise RevisionNotFound(revision, [f"step:{other}" for other in sorted(near)], "no commit has this step")


def _by_metric(db: LocalDatabase, name: str, names: Names, revision: str) -> ObjectId | None:
    kind, _, metric = name.partition(":")
    if kind not in ("min", "max") or not metric:
        return None
    best: Commit | None = None
    known: set[str] = set()
    for commit in _from_head(db, names):
        known.update(commit.metrics)
        value = commit.metrics.get(metric, math.nan)
        if math.isnan(value):
            continue
        if best is None or (value < best.metrics[metric] if kind == "min" else value > best.metrics[metric]):
            best = commit
    if best is None:
        near = [f"{kind}:{other}" for other in nearest_names(metric, sorted(known))]
        raise RevisionNotFound(revision, near, f"no commit has a metric {metric!r}")
    return best.id


def _from_head(db: LocalDatabase, names: Names) -> Iterator[Commit]:
    head = head_of(db, names)
    return ancestors(db, head) if head is not None else iter(())


def _step(db: LocalDatabase, id: ObjectId, found: re.Match[str], revision: str) -> ObjectId:
    back, parent = found.group(1), found.group(2)
    if parent is not None:
        parents = read_commit(db, id).parents
        number = int(parent or 1)
        if number == 0:
            return id
        if number > len(parents):
            raise RevisionNotFound(revision, why=f"{id.short} has {len(parents)} parents")
        return parents[number - 1]
    wanted = int(back or 1)
    for distance, commit in enumerate(first_parents(db, id)):
        if distance == wanted:
            return commit.id
    raise RevisionNotFound(revision, why=f"the chain is shorter than {wanted} commits")


def _from_reflog(db: LocalDatabase, name: str, which: str, names: Names, revision: str) -> ObjectId:
    lines = _reflog(db, name, names)
    if _NUMBER.fullmatch(which):
        if int(which) < len(lines):
            target = lines[int(which)].new
            if isinstance(target, ObjectId):
                return target
        raise RevisionNotFound(revision, why=f"{name} moved only {len(lines)} times")
    found = _AGO.fullmatch(which.strip())
    if found is None:
        raise RevisionNotFound(revision, why=f"{which!r} is neither a number nor a time such as `2h ago`")
    moment = names.now_us() - int(float(found.group(1)) * _SECONDS[found.group(2)] * 1e6)
    for line in lines:
        if line.time_us <= moment and isinstance(line.new, ObjectId):
            return line.new
    raise RevisionNotFound(revision, why=f"{name} is younger than that")


def _reflog(db: LocalDatabase, name: str, names: Names) -> list[ReflogLine]:
    with db.view() as view:
        if name in (HEAD, "@", "latest") and names.branch is not None:
            return view.reflog(names.branch)
        for full in (HEADS + name, TAGS + name, name):
            lines = view.reflog(full)
            if lines:
                return lines
    return []


def in_range(steps: tuple[int | None, int | None] | None, since: datetime | None) -> Callable[[Commit], bool]:
    """Return a test for commits of a range of steps (both ends included) made at or after a time."""
    if since is not None and since.tzinfo is None:
        raise InvalidInput("since needs a time zone, such as datetime.now(UTC) - timedelta(hours=2)")
    low, high = steps if steps is not None else (None, None)

    def test(commit: Commit) -> bool:
        if since is not None and commit.time < since:
            return False
        if steps is None:
            return True
        return commit.step is not None and (low is None or commit.step >= low) and (high is None or commit.step <= high)

    return test
