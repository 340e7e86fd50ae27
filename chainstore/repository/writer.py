"""The writer: a commit that is built piece by piece, each piece stored when it is assigned."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from chainstore.errors import InvalidInput
from chainstore.model.commit import Stats
from chainstore.model.manifest import Manifest
from chainstore.model.paths import Path as PathKeys
from chainstore.model.paths import parse_path
from chainstore.model.tree import Entry
from chainstore.odb.batch import LocalBatch
from chainstore.ops.commit import file_leaves
from chainstore.repository.handles import Handle
from chainstore.repository.recording import Request, Written, find_landing, finish, trusted_chunks, write_leaves
from chainstore.repository.settings import Settings
from chainstore.state import flatten, nodes
from chainstore.state.leaf import Leaf


@contextmanager
def writing(handle: Handle, request: Request, codec: str | None) -> Iterator["Writer"]:
    """Give a writer, and publish what it was given on a clean exit; see `Repository.writer`."""
    started = time.perf_counter()
    with handle.turn():
        landing = find_landing(handle, request)
        batch = handle.db.batch(handle.codec(codec))
        writer = Writer(batch, handle.settings)
        try:
            batch.trust(trusted_chunks(handle, landing))
            try:
                yield writer
            finally:
                writer._close()
            finish(handle, batch, request, landing, writer._written(), started)
        finally:
            handle.db.retire_batch(batch)


class Writer:
    """A commit that is built piece by piece; see `Repository.writer`."""

    def __init__(self, batch: LocalBatch, settings: Settings) -> None:
        self._batch, self._settings = batch, settings
        self._entries: list[Entry] = []
        self._files: list[Entry] = []
        self._stats = Stats()
        self._closed = False

    def __setitem__(self, key: str, value: object) -> None:
        """Store `value` under a top-level key, now."""
        self._put((key,), value)

    def add(self, path: str, value: object) -> None:
        """Store `value` at a path such as "optimizer/exp_avg", now; dicts above it are made."""
        self._put(parse_path(path), value)

    def add_file(self, name: str, path: str | os.PathLike[str]) -> None:
        """Store a file beside the state, now."""
        leaves = file_leaves({name: Path(path)})
        if any(leaf.path[: len(e.path)] == e.path[: len(leaf.path)] for leaf in leaves for e in self._files):
            raise InvalidInput(f"{name!r} is in this commit already, as a file or a folder")
        self._files += self._write(leaves).entries

    def _close(self) -> None:
        """Take nothing more; what was written can still be published."""
        self._closed = True

    def _written(self) -> Written:
        """Return what was written, in one walk order, the dicts above it included."""
        above = [Entry(path, [nodes.DICT], None, ()) for path in self._dicts_above()]
        order: dict[object, int] = {}
        for entry in self._entries:
            for depth in range(len(entry.path) + 1):
                order.setdefault(entry.path[:depth], len(order))
        order.setdefault((), -1)

        def rank(entry: Entry) -> tuple[int, ...]:
            return tuple(order[entry.path[:depth]] for depth in range(len(entry.path) + 1))

        state = Manifest(sorted([*above, *self._entries], key=rank))
        return Written(state, Manifest(self._files), self._stats)

    def _dicts_above(self) -> dict[PathKeys, None]:
        """Return the paths above what was written that were not written themselves, the root's included."""
        made = {entry.path for entry in self._entries}
        above = dict.fromkeys(
            entry.path[:depth]
            for entry in self._entries
            for depth in range(len(entry.path))
            if entry.path[:depth] not in made
        )
        above.setdefault((), None)
        return above

    def _put(self, path: PathKeys, value: object) -> None:
        if not path:
            raise InvalidInput("a value needs a path of at least one key")
        if any(e.path[: len(path)] == path or path[: len(e.path)] == e.path for e in self._entries):
            raise InvalidInput(f"{'/'.join(map(str, path))!r} was written already; a commit holds each path once")
        nested = value
        for key in reversed(path):
            nested = {key: nested}
        leaves = [leaf for leaf in flatten(nested) if leaf.path[: len(path)] == path]
        if not leaves:  # no arrays above: the dicts around it became one plain value
            leaves = [leaf._replace(path=path) for leaf in flatten({path[-1]: value})[1:]]
        self._entries += self._write(leaves).entries

    def _write(self, leaves: Sequence[Leaf]) -> Manifest:
        if self._closed:
            raise InvalidInput("this writer has finished")
        manifest, stats = write_leaves(self._batch, leaves, self._settings)
        self._stats = self._stats + stats
        return manifest
