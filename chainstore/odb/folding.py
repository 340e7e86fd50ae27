"""Folding: in which order records that build on each other are decoded, and how long what they hold is kept.

A line of differences is folded from its bottom up; one buffer suffices where its codecs work in place, else two,
however long it is.  Where records have several bases (a moment, and what is predicted from it) each is decoded once,
from the oldest on, and what nothing builds on any more is let go.  Where that does not fit into the memory there is,
the cheapest is decoded again.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import Final, NamedTuple

from chainstore.ids import ObjectId
from chainstore.odb.rows import Place
from chainstore.odb.view import View

FOLD_BYTES: Final = 8 << 20  # for what is decoded on the way: weights predicted from moments hold five chunks at most
_MOST_TIMES: Final = 8  # as many steps as there are records: beyond that memory is cheaper than time


class Node(NamedTuple):
    """A record as the index has it: its object, where it lies (None: nowhere), and what it builds on."""

    id: ObjectId
    place: Place | None
    bases: tuple[ObjectId, ...]

    @property
    def nbytes(self) -> int:
        """Plain bytes of the object."""
        return self.place.plain_len if self.place is not None else 0

    @property
    def depth(self) -> int:
        """As the index has it."""
        return self.place.depth if self.place is not None else 0


class Step(NamedTuple):
    """One record to decode, and objects that are to be let go before that."""

    node: Node
    dropped: tuple[ObjectId, ...]


Nodes = Mapping[ObjectId, Node]


def lay_out(view: View, ids: Iterable[ObjectId]) -> dict[ObjectId, Node]:
    """Return the records of objects and of everything that they build on.

    Cost: one look-up for each object, two where it has bases.

    Raises:
        Damaged: a row does not read.
    """
    nodes: dict[ObjectId, Node] = {}
    queue = list(ids)
    while queue:
        id = queue.pop()
        if id not in nodes:
            place = view.place(id)
            bases = view.bases(id) if place is not None and place.n_bases else ()
            nodes[id] = Node(id, place, bases)
            queue += bases
    return nodes


def below(nodes: Nodes, ids: Iterable[ObjectId]) -> dict[ObjectId, Node]:
    """Return of `nodes`, which `lay_out` returned, those of objects and of everything that they build on."""
    found: dict[ObjectId, Node] = {}
    queue = list(ids)
    while queue:
        id = queue.pop()
        if id not in found:
            found[id] = nodes[id]
            queue += found[id].bases
    return found


def misfit(nodes: Nodes) -> tuple[ObjectId, str] | None:
    """Return an object that cannot be what the index says, and why; None where everything fits.

    Depths that fall from each record to its bases are why a fold comes to an end.
    """
    for node in nodes.values():
        if node.place is None:
            continue
        if len(node.bases) != node.place.n_bases:
            return node.id, "the index does not name what it builds on"
        for base in node.bases:
            if nodes[base].depth >= node.depth:
                return base, "it is no base for what refers to it"
    return None


def built_on(nodes: Nodes, id: ObjectId) -> set[ObjectId]:
    """Return an object and everything in `nodes` that builds on it."""
    above: dict[ObjectId, list[ObjectId]] = {}
    for node in nodes.values():
        for base in node.bases:
            above.setdefault(base, []).append(node.id)
    found, queue = {id}, [id]
    while queue:
        queue += (new := [each for each in above.get(queue.pop(), ()) if each not in found])
        found.update(new)
    return found


def schedule(nodes: Nodes, wanted: Collection[ObjectId], room: int) -> list[Step]:
    """Return in which order to decode all of `nodes`.

    Args:
        nodes: some records and everything that they build on, without a `misfit`.
        wanted: those of them that are kept, in memory of the caller's, and may be read from there.
        room: bytes for everything else.  What one record needs at once may be more; then that is taken.
    """
    if not any(node.bases for node in nodes.values()):
        return [Step(node, ()) for node in nodes.values()]
    line = sorted(nodes.values(), key=lambda node: node.depth)
    if len(wanted) == 1 and line[-1].id in wanted and _is_line(line):
        return [Step(node, before.bases) for before, node in pairwise([line[0], *line])]
    once = _Schedule(nodes, wanted)
    once.run()
    if once.most_bytes > room:
        again = _Schedule(nodes, wanted, room, _MOST_TIMES * len(nodes))
        if again.run() and again.most_bytes < once.most_bytes:
            return again.steps
    return once.steps


def _is_line(nodes: Collection[Node]) -> bool:
    """Return whether each of some records but one builds on another one of them alone, and no two on the same."""
    return all(len(node.bases) < 2 for node in nodes) and len({node.bases for node in nodes}) == len(nodes)


def lines(nodes: Nodes, wanted: Collection[ObjectId]) -> dict[ObjectId, ObjectId]:
    """Return of each record the last one of its line: they build on each other alone, and are equally long.

    All of a line can be decoded in the same memory, if each is made of the one before where that lies.
    """
    uses = Counter(base for node in nodes.values() for base in set(node.bases))
    after: dict[ObjectId, ObjectId] = {}
    for node in nodes.values():
        for base in node.bases if len(node.bases) == 1 else ():
            if uses[base] == 1 and base not in wanted and nodes[base].nbytes == node.nbytes:
                after[base] = node.id
    last: dict[ObjectId, ObjectId] = {}
    for node in sorted(nodes.values(), key=lambda node: -node.depth):
        above = after.get(node.id)
        last[node.id] = last[above] if above is not None else node.id
    return last


class _Schedule:
    """The walk, first bases first: those are the older versions, whose moments then go before newer ones come.

    Attributes:
        most_bytes: held at once, what is wanted left out.
    """

    def __init__(
        self, nodes: Nodes, wanted: Collection[ObjectId], room: int | None = None, most_steps: int = 0
    ) -> None:
        self.steps: list[Step] = []
        self.most_bytes = 0
        self._nodes, self._wanted, self._room, self._most_steps = nodes, wanted, room, most_steps
        self._later = dict.fromkeys(nodes, 0)  # records that build on it and were not made yet
        for node in nodes.values():
            for base in set(node.bases):
                self._later[base] += 1
        self._live: dict[ObjectId, int] = {}
        self._bytes = 0
        self._made: set[ObjectId] = set()
        self._dropping: list[ObjectId] = []
        self._evicted = False

    def run(self) -> bool:
        """Fill `steps`; return False, and leave them unfinished, where there would be too many."""
        roots = [id for id, later in self._later.items() if not later]
        roots.sort(key=lambda id: -self._nodes[id].depth)
        return all(map(self._visit, roots))

    def _visit(self, root: ObjectId) -> bool:
        stack = [root]
        while stack:
            node = self._nodes[stack[-1]]
            missing = next((base for base in node.bases if base not in self._live), None)
            if missing is not None:
                stack.append(missing)
                continue
            self._make(node, stack)
            stack.pop()
            if self._room is not None and len(self.steps) > self._most_steps:
                return False
        return True

    def _make(self, node: Node, stack: list[ObjectId]) -> None:
        nbytes = 0 if node.id in self._wanted else node.nbytes
        if self._room is not None and self._bytes + nbytes > self._room:
            self._make_room(self._room - nbytes, stack)
        self.steps.append(Step(node, tuple(self._dropping)))
        self._dropping.clear()
        self._live[node.id] = nbytes
        self._bytes += nbytes
        self.most_bytes = max(self.most_bytes, self._bytes)
        bases = set(node.bases)
        if node.id not in self._made:
            self._made.add(node.id)
            for base in bases:
                self._later[base] -= 1
        # what was evicted and made again may be waited for although everything on it was made once
        awaited = _awaited(self._nodes, stack) if self._evicted else ()
        for base in bases:
            if not self._later[base] and base not in awaited and base not in self._wanted:
                self._drop(base)

    def _make_room(self, room: int, stack: list[ObjectId]) -> None:
        awaited = _awaited(self._nodes, stack) | set(self._nodes[stack[-1]].bases)
        idle = [id for id, nbytes in self._live.items() if nbytes and id not in awaited]
        for id in sorted(idle, key=lambda id: self._nodes[id].depth):
            if self._bytes <= room:
                return
            self._evicted = True
            self._drop(id)

    def _drop(self, id: ObjectId) -> None:
        self._bytes -= self._live.pop(id)
        self._dropping.append(id)


def _awaited(nodes: Nodes, stack: list[ObjectId]) -> set[ObjectId]:
    """Return what lies ready for those on the stack that wait for another base, each for the one after it."""
    found: set[ObjectId] = set()
    for id, next_one in pairwise(stack):
        bases = nodes[id].bases
        found.update(bases[: bases.index(next_one)])
    return found
