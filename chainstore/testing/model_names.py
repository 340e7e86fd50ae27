"""The names of the reference model: commits, refs, and what their reflogs say.  See `chainstore.testing.model`."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from chainstore.errors import AlreadyExists, InvalidInput, RevisionNotFound, SnapshotForgotten
from chainstore.ids import ObjectId

HEAD = "HEAD"
Place = ObjectId | str | None  # where a ref is: a commit, the full name of a branch (HEAD only), nowhere


@dataclass(frozen=True, slots=True)
class Node:
    """A commit.

    Attributes:
        content: what its snapshot holds; never looked at.
        step: of the commit.
    """

    content: object
    parents: tuple[ObjectId, ...]
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """A line of a reflog; time in seconds."""

    old: Place
    new: Place
    time: float


@dataclass(slots=True)
class Names:
    """What the refs of a repository must look like.

    Attributes:
        now: the clock in seconds, that of the repository under test; reflogs expire by it.
        commits: id -> commit, in the order in which they were made; those that gc took are absent.
        branches, tags: short name -> commit.
        head: the short name of a branch, which need not exist yet, or the commit where HEAD is detached.
        marks: forgotten commits, and whether gc made that final.
        moves: full name of a ref -> its reflog, oldest first.

    Errors, of all methods: RevisionNotFound, where a commit or a ref is not there.  Nothing was changed then.
    """

    now: Callable[[], float] = time.time
    commits: dict[ObjectId, Node] = field(default_factory=dict)
    branches: dict[str, ObjectId] = field(default_factory=dict)
    tags: dict[str, ObjectId] = field(default_factory=dict)
    head: str | ObjectId = "main"
    marks: dict[ObjectId, bool] = field(default_factory=dict)
    moves: dict[str, list[Move]] = field(default_factory=dict)

    # -- looking

    @property
    def tip(self) -> ObjectId | None:
        """The commit that HEAD leads to."""
        return self.branches.get(self.head) if not isinstance(self.head, ObjectId) else self.head

    def history(self, *starts: ObjectId) -> set[ObjectId]:
        """Return commits and all that they descend from."""
        found: set[ObjectId] = set()
        waiting = list(starts)
        while waiting:
            id = waiting.pop()
            if id not in found:
                found.add(id)
                waiting += self.commits[id].parents
        return found

    def chain(self, tip: ObjectId | None) -> list[ObjectId]:
        """Return a commit and its first parents, newest first."""
        found = []
        while tip is not None:
            found.append(tip)
            tip = next(iter(self.commits[tip].parents), None)
        return found

    def parents_for(self, branch: str | None = None) -> tuple[ObjectId, ...]:
        """Return what the next commit to a branch (None: the one that HEAD is on) descends from."""
        tip = self.tip if branch is None else self.branches.get(branch, self.tip)
        return (tip,) if tip is not None else ()

    def reflog(self, name: str) -> list[Move]:
        """Return the moves of a branch or tag (short name), newest first."""
        found = self.moves.get(f"heads/{name}") or self.moves.get(f"tags/{name}")
        if not found:
            raise RevisionNotFound(name)
        return found[::-1]

    def protected(self) -> set[ObjectId]:
        """Return the commits that have a name; those are never forgotten."""
        named = {*self.branches.values(), *self.tags.values()}
        return named | ({self.head} if isinstance(self.head, ObjectId) else set())

    def unreachable(self) -> set[ObjectId]:
        """Return the commits that no ref and no line of a reflog leads to."""
        logged = {place for line in self._lines() for place in (line.old, line.new) if isinstance(place, ObjectId)}
        return self.commits.keys() - self.history(*self.protected(), *logged)

    # -- changing

    def commit(self, id: ObjectId, content: object, *, branch: str | None = None, step: int | None = None) -> None:
        """Note a commit that the repository made; where HEAD is detached and no branch is named, a new branch."""
        parents = self.parents_for(branch)
        on = branch if branch is not None else self.head
        name = on if isinstance(on, str) else self._fresh_branch(on)
        self.commits[id] = Node(content, parents, step)
        self._move_branch(name, id)
        if isinstance(on, ObjectId):
            self._move_head(name)

    def branch(self, name: str, start: ObjectId) -> ObjectId:
        """Make a branch.  AlreadyExists: it is there.  SnapshotForgotten: gc has taken what it would lead to."""
        self._must_know(start)
        if name in self.branches:
            raise AlreadyExists(name)
        self._must_not_be_taken(start)
        self._move_branch(name, start)
        return start

    def tag(self, name: str, at: ObjectId) -> ObjectId:
        """Make a tag; the errors are those of `branch`."""
        self._must_know(at)
        if name in self.tags:
            raise AlreadyExists(name)
        self._must_not_be_taken(at)
        self._move_tag(name, at)
        return at

    def delete(self, name: str) -> ObjectId:
        """Delete a branch, or a tag where there is no such branch.  InvalidInput: HEAD is on it."""
        if name in self.branches:
            if name == self.head:
                raise InvalidInput(name)
            old = self.branches[name]
            self._move_branch(name, None)
            return old
        if name in self.tags:
            old = self.tags[name]
            self._move_tag(name, None)
            return old
        raise RevisionNotFound(name)

    def switch(self, name: str) -> None:
        """Put HEAD on a branch."""
        self._must_have_branch(name)
        self._move_head(name)

    def detach(self, at: ObjectId) -> ObjectId:
        """Put HEAD on a commit.  SnapshotForgotten: gc has taken it."""
        self._must_know(at)
        if self.head != at:
            self._must_not_be_taken(at)
            self._move_head(at)
        return at

    def reset(self, name: str, to: ObjectId) -> ObjectId:
        """Move a branch and return where it was.  SnapshotForgotten: gc has taken what it would lead to."""
        self._must_have_branch(name)
        self._must_know(to)
        self._must_not_be_taken(to)
        old = self.branches[name]
        self._move_branch(name, to)
        return old

    def roll_back(self, name: str, to: ObjectId, tag: str) -> ObjectId:
        """Move a branch back, and tag its old tip, which is returned.

        Raises:
            InvalidInput: `to` is not in its past.  SnapshotForgotten: gc has taken `to`.
        """
        self._must_have_branch(name)
        self._must_know(to)
        old = self.branches[name]
        if to == old or to not in self.history(old):
            raise InvalidInput(to.short)
        self._must_not_be_taken(to)
        self._move_branch(name, to)
        self._move_tag(tag, old)
        return old

    # -- inside

    def _must_know(self, *ids: ObjectId) -> None:
        for id in ids:
            if id not in self.commits:
                raise RevisionNotFound(str(id))

    def _must_have_branch(self, name: str) -> None:
        if name not in self.branches:
            raise RevisionNotFound(name)

    def _must_not_be_taken(self, id: ObjectId) -> None:
        """Refuse what gc has taken; what is only forgotten is so no longer, since it gets a name."""
        if self.marks.get(id):
            raise SnapshotForgotten(f"gc has taken {id.short}")

    def _fresh_branch(self, at: ObjectId) -> str:
        stem, number = f"from-{at.short}", 2
        name = stem
        while name in self.branches:
            name, number = f"{stem}-{number}", number + 1
        return name

    def _move_branch(self, name: str, new: ObjectId | None) -> None:
        self._move(f"heads/{name}", self.branches.get(name), new)
        if new is None:
            del self.branches[name]
        else:
            self.branches[name] = new

    def _move_tag(self, name: str, new: ObjectId | None) -> None:
        self._move(f"tags/{name}", self.tags.get(name), new)
        if new is None:
            del self.tags[name]
        else:
            self.tags[name] = new

    def _move_head(self, to: str | ObjectId) -> None:
        if to != self.head:
            self._move(HEAD, _full(self.head), _full(to))
            self.head = to

    def _move(self, ref: str, old: Place, new: Place) -> None:
        self.moves.setdefault(ref, []).append(Move(old, new, self.now()))
        if isinstance(new, ObjectId):
            self.marks.pop(new, None)

    def _lines(self) -> Iterator[Move]:
        for lines in self.moves.values():
            yield from lines


def _full(head: str | ObjectId) -> Place:
    return head if isinstance(head, ObjectId) else f"heads/{head}"
