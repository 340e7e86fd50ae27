"""Snapshots that read only what they are asked for.

snap = repo["step:1200"]
snap["model"]["layer.0.weight"]         one tensor, verified
snap.keys("model/**")                   names, from the trees alone
snap.slice("model/emb.weight")[10:20]   only the chunks touched
snap.load_into(model, optimizer)        in place; memory that already holds the bytes is left alone
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from chainstore.errors import Damaged, IdMismatch, InvalidInput, PathNotFound, SnapshotForgotten, StateMismatch
from chainstore.ids import ObjectId
from chainstore.model.commit import Commit
from chainstore.model.manifest import Manifest
from chainstore.model.paths import Attr, Path, compile_glob, format_path, parse_path
from chainstore.model.spec import Spec
from chainstore.model.tree import Entry, Extent, Root, read_tree
from chainstore.observe import Observer
from chainstore.odb.local import LocalDatabase
from chainstore.ops.checkout import fill
from chainstore.ops.fitting import (
    group_problems,
    matched_names,
    moment_problems,
    under_live_names,
    under_stored_names,
    without_misfits,
)
from chainstore.ops.history import first_parents
from chainstore.refs import nearest_names
from chainstore.state import Assembly, compare, references, shown_spec
from chainstore.state.leaf import Destination

Globs = str | Sequence[str] | None
ROLES = frozenset({"model", "optimizer", "scheduler", "scaler"})


@runtime_checkable
class Loadable(Protocol):
    """What `load_into` fills: modules, optimizers, schedulers, scalers, data loaders."""

    def state_dict(self) -> Mapping[str, object]: ...
    def load_state_dict(self, state_dict: Any) -> object: ...


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What is known of an array without reading it.

    Attributes:
        dtype: torch's name of it.  shape: as its user sees it.  nbytes: as stored, before compression.
    """

    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What `load_into` did.

    Attributes:
        missing_keys: what the objects have and the snapshot lacks.
        unexpected_keys: what the snapshot holds and the objects lack.
        mismatched: arrays of another dtype or shape.
        step: of the commit.
        read_bytes: raw bytes of the chunks that had to be read; the rest was there already.
    """

    missing_keys: tuple[str, ...]
    unexpected_keys: tuple[str, ...]
    mismatched: tuple[str, ...]
    step: int | None
    read_bytes: int


@dataclass(frozen=True, slots=True)
class Reading:
    """How snapshots read: the store, and what a read may use."""

    db: Callable[[], LocalDatabase]
    threads: int
    max_memory_bytes: int
    observer: Observer


class Snapshot:
    """The state of one commit, or the part of it below a path; reads nothing before it is asked.

    Attributes:
        commit: the commit it belongs to.
        path: where in the state it starts; "" for the whole.
    """

    def __init__(self, commit: Commit, reading: Reading, *, manifest: Manifest | None = None, root: Path = ()) -> None:
        self.commit = commit
        self._reading = reading
        self._manifest = manifest
        self._beside: dict[str, Entry] | None = None
        self._root = root

    def __repr__(self) -> str:
        below = f" below {self.path}" if self._root else ""
        return f"<Snapshot {self.commit.short}{below}>"

    @property
    def path(self) -> str:
        return format_path(self._root)

    @property
    def manifest(self) -> Manifest:
        """The entries of the whole state; read on first use."""
        if self._manifest is None:
            self._manifest = Manifest(self._entries("state"))
        return self._manifest

    def keys(self, glob: str | None = None) -> list[str]:
        """Return the paths of arrays and plain values, in the order of the state.

        Args:
            glob: only those that match: `*` is one key, `**` any number.
        """
        wanted = compile_glob(glob) if glob is not None else None
        return [format_path(entry.path) for entry in self._leaves() if wanted is None or wanted(entry.path)]

    def info(self, path: str) -> TensorInfo:
        """Return dtype, shape and bytes of an array, from the trees alone.

        Raises:
            PathNotFound: there is no such array.
        """
        entry = self._entry(path)
        spec = shown_spec(entry, self.manifest.get)
        if spec is None:
            raise PathNotFound(path, self.commit.short)
        return TensorInfo(spec.dtype, spec.shape, entry.nbytes)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str | int | bytes | bool | tuple | float) and (*self._root, key) in self.manifest

    def __getitem__(self, key: object) -> Any:
        """Return what lies at one more key: a value or array, loaded, or a smaller snapshot."""
        path = (*self._root, key)
        if path not in self.manifest:
            names = [str(e.path[-1]) for e in self.manifest.entries if e.path and e.path[:-1] == self._root]
            near = nearest_names(str(key), names) or names[:3]
            raise PathNotFound(format_path(path), self.commit.short, near)  # type: ignore[arg-type]
        entry = self.manifest[path]  # type: ignore[index]
        if entry.spec is None and not entry.extents and self._has_children(entry.path):
            return Snapshot(self.commit, self._reading, manifest=self.manifest, root=entry.path)
        return self._load(entry.path, None, None)

    def __iter__(self) -> Iterator[object]:
        """Yield the keys directly below this snapshot's path."""
        depth = len(self._root)
        for entry in self.manifest.entries:
            below = len(entry.path) == depth + 1 and entry.path[:depth] == self._root
            if below and not isinstance(entry.path[-1], Attr):
                yield entry.path[-1]

    def load(self, select: Globs = None, exclude: Globs = None, *, map_location: str | None = None) -> Any:
        """Return the state, or the selected part of it, as it was saved.

        Args:
            select, exclude: globs over paths; a path is loaded if some `select` matches and no `exclude` does.
            map_location: device for tensors; the host by default.

        Raises:
            IdMismatch: some chunk is damaged; names path, commit and the nearest ancestor with other bytes there.
            PathNotFound: nothing matches.
        """
        return self._load(self._root, _selection(select, exclude), map_location)

    def slice(self, path: str) -> "ArraySlice":
        """Return a view of an array that reads only the chunks of the rows it is asked for."""
        return ArraySlice(self, self._entry(path))

    @property
    def files(self) -> list[str]:
        """The names of the files committed beside the state."""
        return list(self._files())

    def file_info(self, name: str) -> tuple[int, bool]:
        """Return bytes of a file that was committed beside the state, and whether it may be executed.

        Raises:
            PathNotFound: there is none of that name.
        """
        entry = self._file(name)
        return entry.nbytes, isinstance(entry.node, list) and entry.node[1:] == [True]

    def read_file(self, name: str) -> bytes:
        """Return the bytes of a file that was committed beside the state.

        Raises:
            PathNotFound: there is none of that name.
        """
        entry = self._file(name)
        room = memoryview(bytearray(entry.nbytes))
        self._fill([Destination(entry, room, False)], "files")
        return bytes(room)

    def load_into(
        self,
        *objects: Loadable,
        at: Mapping[str, str] | None = None,
        strict: bool = True,
        assign: bool = False,
        map_location: str | None = None,
        **named: Loadable,
    ) -> LoadResult:
        """Load the snapshot into live objects, in place, each object's memory that already fits left alone.

        Args:
            objects: modules, optimizers, schedulers, scalers: looked for under "model", "optimizer", "scheduler",
                "scaler".
            at: other paths for those four: {"model": "model_state"}.
            strict: refuse when names, dtypes or shapes of a module, or the parameters of an optimizer, do not fit;
                else load of a module what fits, and leave an optimizer that does not fit as it is.
            assign: passed on to `Module.load_state_dict`.
            named: objects by the path they were saved under.

        Everything is checked before anything is written.  Names that differ only by the `module.` and `_orig_mod.` of
        wrappers are matched.

        Raises:
            StateMismatch: an object has no place in the snapshot, or does not fit; nothing was written.
            IdMismatch: a chunk is damaged; the objects may be half loaded.
        """
        unknown = set(at or {}) - ROLES
        if unknown:
            raise InvalidInput(f"at= names no {', '.join(sorted(unknown))}; it may name {', '.join(sorted(ROLES))}")
        places = self._places(objects, dict(at or {}))
        places |= {(name,): thing for name, thing in named.items()}
        plans = [self._plan(path, thing, map_location) for path, thing in places.items()]
        result = LoadResult(
            tuple(text for plan in plans for text in plan.missing),
            tuple(text for plan in plans for text in plan.unexpected),
            tuple(text for plan in plans for text in plan.mismatched),
            self.commit.step,
            0,
        )
        if strict and (result.missing_keys or result.unexpected_keys or result.mismatched):
            raise StateMismatch(
                _mismatch_text(result),
                missing=result.missing_keys,
                unexpected=result.unexpected_keys,
                mismatched=result.mismatched,
            )
        plans = [plan for plan in plans if plan.usable]
        read = self._fill([d for plan in plans for d in plan.assembly.destinations])
        for plan in plans:
            plan.finish(strict, assign)
        return replace(result, read_bytes=read)

    # -- inside

    def _files(self) -> dict[str, Entry]:
        if self._beside is None:
            self._beside = {"/".join(map(str, entry.path)): entry for entry in self._entries("files")}
        return self._beside

    def _file(self, name: str) -> Entry:
        found = self._files().get(name)
        if found is None:
            raise PathNotFound(name, self.commit.short, nearest_names(name, self.files))
        return found

    def _entries(self, which: str, under: Path = ()) -> list[Entry]:
        db = self._reading.db()
        with db.view() as view:
            mark = view.mark(self.commit.id)
        if mark is not None:
            raise SnapshotForgotten(f"the snapshot of {self.commit.short} was forgotten by {mark.policy}")

        def load(id: ObjectId) -> bytes:
            return bytes(db.read(id))

        try:
            root = Root.from_bytes(load(self.commit.tree))
            tree = root.state if which == "state" else root.files
            return list(read_tree(tree, load, under)) if tree is not None else []
        except IdMismatch as error:
            raise self._placed(error, f"the names in {self.commit.short}", which, names=True) from error

    def _leaves(self) -> Iterator[Entry]:
        depth = len(self._root)
        for entry in self.manifest.entries:
            if entry.path[:depth] != self._root or isinstance(entry.path[-1] if entry.path else None, Attr):
                continue
            if entry.spec is not None or entry.extents or not self._has_children(entry.path):
                yield entry

    def _has_children(self, path: Path) -> bool:
        return path in self._parents()

    def _parents(self) -> frozenset[Path]:
        """Paths of entries that have others below them, attributes apart."""
        found: frozenset[Path] | None = getattr(self, "_parent_paths", None)
        if found is None:
            found = frozenset(e.path[:-1] for e in self.manifest.entries if e.path and type(e.path[-1]) is not Attr)
            self._parent_paths = found
        return found

    def _entry(self, path: str) -> Entry:
        full = (*self._root, *parse_path(path))
        if full not in self.manifest:
            names = [format_path(entry.path) for entry in self.manifest.entries]
            raise PathNotFound(path, self.commit.short, nearest_names(path, names))
        return self.manifest[full]

    def _load(self, root: Path, select: Callable[[Path], bool] | None, map_location: str | None) -> object:
        entries = self._needed(root)
        assembly = Assembly(entries, root=root, select=select, map_location=map_location)
        if select is not None and not assembly.destinations and not any(select(e.path) for e in entries):
            raise PathNotFound("what select and exclude leave", self.commit.short)
        self._fill(assembly.destinations)
        return assembly.build()

    def _needed(self, root: Path) -> Sequence[Entry]:
        """Return the entries at and below `root`, and those they refer to, in walk order."""
        if not root:
            return self.manifest.entries
        wanted = {root}
        while True:
            chosen = [e for e in self.manifest.entries if any(e.path[: len(w)] == w for w in wanted)]
            more = {target for entry in chosen for target in references(entry.node)} - wanted
            more = {target for target in more if not any(target[: len(w)] == w for w in wanted)}
            if not more:
                return chosen
            wanted |= more

    def _fill(self, destinations: Sequence[Destination], which: str = "state") -> int:
        try:
            return fill(
                self._reading.db(),
                destinations,
                threads=self._reading.threads,
                max_memory_bytes=self._reading.max_memory_bytes,
                observer=self._reading.observer,
            )
        except IdMismatch as error:
            raise self._placed(error, error.path or "", which) from error

    def _placed(self, error: IdMismatch, path: str, which: str, *, names: bool = False) -> IdMismatch:
        ancestor = self._good_ancestor(None if names else path, which)
        return IdMismatch(
            error.id, error.why, path=path, commit=str(self.commit.id), ancestor=str(ancestor) if ancestor else None
        )

    def _good_ancestor(self, path: str | None, which: str) -> ObjectId | None:
        """Return the nearest ancestor whose bytes at `path` read well; None asks for its names alone."""
        db = self._reading.db()
        try:
            keys = parse_path(path) if path is not None else None
            for commit in first_parents(db, self.commit.id):
                if commit.id != self.commit.id and _reads_well(db, commit, keys, which):
                    return commit.id
        except (Damaged, InvalidInput):
            return None  # the chain below is damaged too
        return None

    def _places(self, objects: Sequence[Loadable], at: dict[str, str]) -> dict[Path, Loadable]:
        places: dict[Path, Loadable] = {}
        for thing in objects:
            role = _role(thing)
            path = parse_path(at[role]) if role in at else self._find(role, thing)
            if path in places:
                raise StateMismatch(
                    f"two objects would be loaded from {format_path(path)!r}",
                    hint="name them: snap.load_into(generator=g, critic=c)",
                )
            places[path] = thing
        return places

    def _find(self, role: str, thing: Loadable) -> Path:
        if (*self._root, role) in self.manifest:
            return (role,)
        if set(thing.state_dict()) <= set(self) and role == "model":
            return ()
        candidates = [str(key) for key in self]
        raise StateMismatch(
            f"no {role!r} in {self.commit.short} for {type(thing).__name__}; there are {', '.join(candidates)}",
            hint=f"say where it is: load_into(..., at={{{role!r}: {candidates[0] if candidates else '...'!r}}})",
        )

    def _plan(self, path: Path, thing: Loadable, map_location: str | None) -> "_Plan":
        full = (*self._root, *path)
        if not isinstance(thing, Loadable):
            raise StateMismatch(f"{type(thing).__name__} has no state_dict and load_state_dict")
        if full not in self.manifest:
            raise StateMismatch(f"nothing at {format_path(full)!r} in {self.commit.short}")
        live = thing.state_dict()
        entries = self._needed(full)
        if _role(thing) != "model":
            assembly = Assembly(entries, root=full, into=live, map_location=map_location)
            return _Plan(thing, assembly, live, {}, [], [], self._optimizer_problems(full, thing))
        stored = [entry.path[-1] for entry in entries if entry.path and entry.path[:-1] == full]
        names = matched_names(stored, live)
        into = under_stored_names(live, names)
        assembly = Assembly(entries, root=full, into=into, map_location=map_location)
        prefix = format_path(full) + "/" if full else ""
        found = compare(entries, into, root=full)
        missing, unexpected, mismatched = ([prefix + text for text in texts] for texts in found)
        return _Plan(thing, assembly, live, names, missing, unexpected, mismatched)

    def _optimizer_problems(self, path: Path, thing: Loadable) -> list[str]:
        """Return why the state of an optimizer does not fit; [] for anything else."""
        if _role(thing) != "optimizer":
            return []
        # a state without a single array is one plain value
        whole: Any = self._load(path, None, None) if (*path, "param_groups") not in self.manifest else {}
        stored: Any = whole.get("param_groups", []) if whole else self._load((*path, "param_groups"), None, None)
        live = thing.param_groups  # type: ignore[attr-defined]
        problems = group_problems(stored, live, format_path((*path, "param_groups")))
        states = (*path, "state")
        shapes: dict[tuple[object, str], tuple[int, ...]] = {
            (e.path[-2], str(e.path[-1])): e.spec.shape
            for e in self.manifest.entries
            if e.spec is not None and e.path[:-2] == states
        }
        return problems or moment_problems(shapes, stored, live, format_path(states))


@dataclass(frozen=True, slots=True)
class _Plan:
    """One object that is about to be loaded."""

    thing: Loadable
    assembly: Assembly
    live: Mapping[str, object]
    names: dict[str, str]  # of the snapshot -> of the object
    missing: list[str]
    unexpected: list[str]
    mismatched: list[str]

    @property
    def usable(self) -> bool:
        """Whether any of it may be loaded: of a model what fits, an optimizer whole or not at all."""
        return _role(self.thing) == "model" or not self.mismatched

    def finish(self, strict: bool, assign: bool) -> None:
        state = self.assembly.build()
        assert isinstance(state, Mapping)
        if _role(self.thing) == "model":
            state = under_live_names(state, self.live, self.names)
            state = state if strict else without_misfits(state, self.live)
            self.thing.load_state_dict(state, strict=strict, assign=assign)  # type: ignore[call-arg]
        else:
            self.thing.load_state_dict(state)


class ArraySlice:
    """Rows of one stored array; indexing reads only the chunks they lie in."""

    def __init__(self, snapshot: Snapshot, entry: Entry) -> None:
        node = entry.node
        plain = isinstance(node, list) and len(node) <= 2
        if entry.spec is None or not entry.spec.shape or not plain:
            raise InvalidInput(f"{format_path(entry.path)!r} is not stored in rows; load it whole")
        self._snapshot, self._entry = snapshot, entry
        self._spec = entry.spec

    def __len__(self) -> int:
        return self._spec.shape[0]

    def __getitem__(self, rows: slice | int) -> Any:
        """Return rows of the first dimension: an array for a slice, one row for a number."""
        if isinstance(rows, int):
            index = range(len(self))[rows]
            return self[index : index + 1][0]
        if not isinstance(rows, slice):
            raise InvalidInput(f"rows are a slice or a number, not {type(rows).__name__}")
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise InvalidInput("rows are read in order; a step is not supported, index the result")
        stop = max(start, stop)
        shape = (stop - start, *self._spec.shape[1:])
        row = self._spec.nbytes // len(self) if len(self) else 0
        extents = tuple(_cut(self._entry.extents, start * row, stop * row))
        part = Entry(self._entry.path, self._entry.node, Spec(self._spec.dtype, shape), extents)
        assembly = Assembly([part], root=part.path)
        self._snapshot._fill(assembly.destinations)
        return assembly.build()


def _cut(extents: Sequence[Extent], start: int, stop: int) -> Iterator[Extent]:
    position = 0
    for extent in extents:
        low, high = max(start, position), min(stop, position + extent.length)
        if low < high:
            yield Extent(extent.chunk, extent.offset + low - position, high - low)
        position += extent.length


def _selection(select: Globs, exclude: Globs) -> Callable[[Path], bool] | None:
    if select is None and exclude is None:
        return None
    wanted = [compile_glob(glob) for glob in _listed(select)] if select is not None else None
    unwanted = [compile_glob(glob) for glob in _listed(exclude)]

    def test(path: Path) -> bool:
        chosen = wanted is None or any(match(path) for match in wanted)
        return chosen and not any(match(path) for match in unwanted)

    return test


def _listed(globs: Globs) -> Sequence[str]:
    return [globs] if isinstance(globs, str) else globs or []


def _role(thing: object) -> str:
    """Return what an object is to a training run, from what it can do (torch is not imported for that)."""
    if hasattr(thing, "named_parameters"):
        return "model"
    if hasattr(thing, "param_groups"):
        return "optimizer"
    if hasattr(thing, "unscale_"):
        return "scaler"
    return "scheduler"


def _reads_well(db: LocalDatabase, commit: Commit, keys: Path | None, which: str) -> bool:
    try:
        root = Root.from_bytes(bytes(db.read(commit.tree)))
        tree = root.files if which == "files" else root.state
        entries = list(read_tree(tree, lambda id: bytes(db.read(id)), keys or ())) if tree is not None else []
        if keys is None:
            return bool(entries)
        for entry in entries:
            if entry.path == keys:
                for extent in entry.extents:
                    db.read(extent.chunk)
                return True
    except Damaged:
        return False
    return False


def _mismatch_text(result: LoadResult) -> str:
    parts = []
    for label, paths in (
        ("missing from the snapshot", result.missing_keys),
        ("not in the objects", result.unexpected_keys),
        ("of another dtype or shape", result.mismatched),
    ):
        if paths:
            shown = "; ".join(paths[:5]) + (f"; and {len(paths) - 5} more" if len(paths) > 5 else "")
            parts.append(f"{len(paths)} {label}: {shown}")
    return "the snapshot does not fit: " + " | ".join(parts)
