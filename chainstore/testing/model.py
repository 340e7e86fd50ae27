"""The reference model: a repository made of dicts, for whoever tests a database against what it must do.

It is told the same as the repository under test.  Where the repository must refuse, the model raises the same error
and stays as it was; so a test needs no rules of its own:

    commit = repo.commit(state, branch="main", step=7)
    model.commit(commit.id, state, branch="main", step=7)
    ...
    repo.gc(); model.gc()
    for id in model.commits:
        same(repo.checkout(id), model.read(id))        # or both raise SnapshotForgotten

Ids are the repository's own, since a model cannot know them.  Nothing here reads a disk or the engine; only names of
errors are shared.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from chainstore.errors import InvalidInput, SnapshotForgotten
from chainstore.ids import ObjectId
from chainstore.testing.model_names import HEAD, Names

REFLOG_SECONDS = 14 * 86_400.0


@dataclass(slots=True)
class Model(Names):
    """What a repository must look like; what it is made of is said at `Names`."""

    def copy(self) -> "Model":
        """Return a model that can be told what may or may not have happened."""
        moves = {name: list(lines) for name, lines in self.moves.items()}
        names = dict(self.branches), dict(self.tags)
        return Model(self.now, dict(self.commits), *names, self.head, dict(self.marks), moves)

    def read(self, id: ObjectId) -> object:
        """Return the content of a snapshot.

        Raises:
            SnapshotForgotten: it was dropped.
        """
        self._must_know(id)
        if id in self.marks:
            raise SnapshotForgotten(f"the model forgot {id.short}")
        return self.commits[id].content

    # -- keeping small

    def kept_by(self, last: int, every_steps: int) -> set[ObjectId]:
        """Return what the policy keep-last, keep-every-steps keeps of the snapshots that branches lead to."""
        order = list(self.commits)
        found = self.protected()
        for tip in self.branches.values():
            ids = sorted(self.history(tip) - self.marks.keys(), key=order.index)
            found |= set(ids[-last:])
            found |= {id for id in ids if (self.commits[id].step or 0) % every_steps == 0}
        return found

    def forget_by(self, last: int, every_steps: int) -> set[ObjectId]:
        """Drop what that policy does not keep, and return it."""
        kept = self.kept_by(last, every_steps)
        dropped = self.history(*self.branches.values()) - self.marks.keys() - kept
        self.marks |= dict.fromkeys(dropped, False)
        return dropped

    def forget(self, ids: Collection[ObjectId]) -> set[ObjectId]:
        """Drop snapshots, and return those that were not forgotten yet.  InvalidInput: one of them has a name."""
        self._must_know(*ids)
        if self.protected() & set(ids):
            raise InvalidInput("it has a name")
        dropped = set(ids) - self.marks.keys()
        self.marks |= dict.fromkeys(dropped, False)
        return dropped

    def unforget(self, ids: Collection[ObjectId] | None = None) -> set[ObjectId]:
        """Bring snapshots back, by default all, and return them.

        Raises:
            SnapshotForgotten: gc has taken one of `ids`, or all there are.
        """
        self._must_know(*(ids or ()))
        wanted = {id for id in self.marks if ids is None or id in ids}
        gone = {id for id in wanted if self.marks[id]}
        if gone and (ids is not None or gone == wanted):
            raise SnapshotForgotten("gc has taken it")
        for id in wanted - gone:
            del self.marks[id]
        return wanted - gone

    def expire(self) -> None:
        """Drop lines of reflogs that are too old; the newest line of a ref that exists stays."""
        before = self.now() - REFLOG_SECONDS
        refs = {HEAD, *(f"heads/{name}" for name in self.branches), *(f"tags/{name}" for name in self.tags)}
        for name, lines in list(self.moves.items()):
            newest = lines[-1:] if name in refs else []
            self.moves[name] = [line for line in lines if line.time >= before or line in newest]
            if not self.moves[name]:
                del self.moves[name]

    def sweep(self) -> None:
        """Make the marks of all forgotten commits final; what nothing leads to gets one, before it goes."""
        self.marks = dict.fromkeys([*self.marks, *self.unreachable()], True)

    def bury(self, ids: Iterable[ObjectId]) -> None:
        """Note that commits are not there any more."""
        for id in ids:
            del self.commits[id]
            self.marks.pop(id, None)

    def gc(self) -> set[ObjectId]:
        """Collect garbage, while nobody else is at work, and return the commits that are gone."""
        self.expire()
        self.sweep()
        gone = self.unreachable()
        self.bury(gone)
        return gone
