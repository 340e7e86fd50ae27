"""The snapshot: what a user can ask of one commit's state, and of the files beside it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path as FilePath
from typing import Any

from chainstore import config
from chainstore.display import size, table
from chainstore.errors import ChainError, PathNotFound
from chainstore.lazy.content import Content
from chainstore.lazy.loading import Loadable, LoadResult, find_places, load_into
from chainstore.lazy.reading import Reading
from chainstore.lazy.selection import Globs, listed, selection
from chainstore.lazy.slices import ArraySlice
from chainstore.model.commit import Commit
from chainstore.model.manifest import Manifest
from chainstore.model.paths import Path, compile_glob, format_path, parse_path
from chainstore.model.tree import Entry
from chainstore.observe import Notice
from chainstore.ops import safetensors
from chainstore.ops.listing import top_level
from chainstore.refs import nearest_names
from chainstore.state import shown_spec
from chainstore.state.leaf import Destination

_MOST_SHOWN = 40  # keys in a notebook


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What is known of an array without reading it.

    Attributes:
        dtype: torch's name of it.  shape: as its user sees it.  nbytes: as stored, before compression.
    """

    dtype: str
    shape: tuple[int, ...]
    nbytes: int


class Snapshot:
    """The state of one commit, or the part of it below a path; reads nothing before it is asked.

    Attributes:
        commit: the commit it belongs to.
        path: where in the state it starts; "" for the whole.
    """

    def __init__(self, commit: Commit, reading: Reading, *, manifest: Manifest | None = None, root: Path = ()) -> None:
        self.commit = commit
        self._reading = reading
        self._content = Content(commit, reading, manifest, root)
        self._beside: dict[str, Entry] | None = None

    def __repr__(self) -> str:
        step = f" step {self.commit.step}" if self.commit.step is not None else ""
        below = f" below {self.path}" if self._content.root else ""
        return f"<Snapshot {self.commit.short}{step}{below}>"

    def _repr_html_(self) -> str:
        """Return a table of what lies directly below its path, for notebooks; reads names, no data."""
        title = f"snapshot {self.commit.short} {self.path}"
        try:
            items = top_level(self.manifest, self._content.root)
        except ChainError as error:
            return table(title, [("error", error)])
        rows = [(item.key, item.kind, item.shape, size(item.nbytes)) for item in items[:_MOST_SHOWN]]
        left = len(items) - _MOST_SHOWN
        more = [(f"and {left:,} more", "", "", size(sum(i.nbytes for i in items[_MOST_SHOWN:])))] if left > 0 else []
        return table(title, [*rows, *more], ("key", "holds", "shape", "bytes"))

    @property
    def path(self) -> str:
        """Where in the state it starts, as text; "" for the whole."""
        return format_path(self._content.root)

    @property
    def manifest(self) -> Manifest:
        """The entries of the whole state; read on first use."""
        return self._content.manifest

    def keys(self, glob: str | None = None) -> list[str]:
        """Return the paths of arrays and plain values, in the order of the state.

        Args:
            glob: only those that match: `*` is one key, `**` any number.
        """
        wanted = compile_glob(glob) if glob is not None else None
        return [format_path(entry.path) for entry in self._content.leaves() if wanted is None or wanted(entry.path)]

    def info(self, path: str) -> TensorInfo:
        """Return dtype, shape and bytes of an array, from the trees alone.

        Raises:
            PathNotFound: there is no such array.
        """
        entry = self._content.entry(path)
        spec = shown_spec(entry, self.manifest.get)
        if spec is None:
            raise PathNotFound(path, self.commit.short)
        return TensorInfo(spec.dtype, spec.shape, entry.nbytes)

    def __contains__(self, key: object) -> bool:
        """Whether a key stands directly below this snapshot's path; 1, True and "1" are three keys."""
        return isinstance(key, str | int | bytes | bool | tuple | float) and (
            (*self._content.root, key) in self.manifest
        )

    def __getitem__(self, key: object) -> Any:
        """Return what lies at one more key: a value or array, loaded, or a smaller snapshot.

        Raises:
            PathNotFound: there is no such key; says what comes closest.  IdMismatch: what lies there is damaged.
        """
        entry = self._content.child(key)
        if self._content.is_container(entry):
            return Snapshot(self.commit, self._reading, manifest=self.manifest, root=entry.path)
        with self._reading.held(self.commit):
            return self._content.load(entry.path)

    def __iter__(self) -> Iterator[object]:
        """Yield the keys directly below this snapshot's path."""
        return self._content.child_keys()

    def load(self, select: Globs = None, exclude: Globs = None, *, map_location: str | None = None) -> Any:
        """Return the state, or the selected part of it, as it was saved.

        Args:
            select, exclude: globs over paths; a path is loaded if some `select` matches and no `exclude` does.
            map_location: device for tensors; the host by default.

        Raises:
            IdMismatch: some chunk is damaged; names path, commit and the nearest ancestor with other bytes there.
            PathNotFound: nothing matches.
        """
        with self._reading.held(self.commit):
            return self._content.load(self._content.root, selection(select, exclude), map_location)

    def slice(self, path: str) -> ArraySlice:
        """Return a view of an array that reads only the chunks of the rows it is asked for.

        `snap.slice("model/emb.weight")[10:20]` has the shape (10, ...); a number gives one row, without that dimension.

        Raises:
            PathNotFound: nothing lies at `path`.
            InvalidInput: it is not stored in rows (sparse, transposed, expanded).
        """
        return ArraySlice(self._content, self._content.entry(path))

    @property
    def files(self) -> list[str]:
        """The names of the files committed beside the state."""
        return list(self._files())

    @property
    def file_entries(self) -> list[Entry]:
        """The entries of those files."""
        return list(self._files().values())

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
        self._reading.fill(self.commit, [Destination(entry, room, False)], "files")
        return bytes(room)

    def plan_safetensors(
        self,
        select: str | Sequence[str] = "model/**",
        exclude: Globs = None,
        *,
        dtype: str | None = None,
        shard_size: int | str | None = "5GB",
        stem: str = "model",
    ) -> safetensors.SafetensorsPlan:
        """Return the safetensors files that the selected tensors make; bytes are read when one is written.

        Args:
            select, exclude: globs over paths.  What `select` spells out before its first wildcard is left out of names.
            dtype: the type that floating-point tensors are written in, such as "bfloat16"; None keeps theirs.
            shard_size: the most in one file, bytes or text; None for one file.
            stem: of the files' names.

        Raises:
            PathNotFound: nothing is selected.
            InvalidInput: a tensor is sparse, quantized, or of a type that the format lacks; names it.
        """
        paths = [parse_path(text) for text in self.keys()]
        return safetensors.plan(
            safetensors.Tensors(self.manifest, paths, self._content.load_array),
            listed(select),
            listed(exclude),
            dtype=dtype,
            shard_bytes=config.parse_size(shard_size) if shard_size is not None else None,
            stem=stem,
        )

    def save_safetensors(
        self,
        path: str | PathLike[str],
        select: str | Sequence[str] = "model/**",
        *,
        exclude: Globs = None,
        dtype: str | None = None,
        shard_size: int | str | None = "5GB",
    ) -> tuple[FilePath, ...]:
        """Write the selected tensors as safetensors, and return the files.

        Args:
            path: a file, or a folder that `model.safetensors` is written to.  Where the tensors take more than
                `shard_size`, `model-00001-of-00002.safetensors` and so on, and an index, are written instead.
            select, exclude, dtype, shard_size: as for `plan_safetensors`.

        Tied tensors are written as copies, since the format knows no ties, and the observer is told.

        Raises:
            PathNotFound, InvalidInput: as for `plan_safetensors`; nothing was written.
        """
        target = FilePath(path)
        single = target.suffix == ".safetensors"
        plan = self.plan_safetensors(
            select, exclude, dtype=dtype, shard_size=shard_size, stem=target.stem if single else "model"
        )
        for text in plan.notices():
            self._reading.observer(Notice("safetensors", text))
        with self._reading.held(self.commit):
            return safetensors.save(plan.files, target.parent if single else target)

    def load_into(
        self,
        *objects: Loadable,
        at: Mapping[str, str] | None = None,
        rng: bool = False,
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
            rng: put the random number generators back, last, from "rng" as `capture` stored it.
            strict: refuse when names, dtypes or shapes of a module, the parameters of an optimizer, or the generators
                do not fit; else load of a module what fits, and leave an optimizer that does not fit as it is.
            assign: passed on to `Module.load_state_dict`.
            named: objects by the path they were saved under.

        Everything is checked before anything is written.  Names that differ only by the `module.` and `_orig_mod.` of
        wrappers are matched.

        Raises:
            StateMismatch: an object has no place in the snapshot, or does not fit; nothing was written.
            IdMismatch: a chunk is damaged; the objects may be half loaded.
        """
        with self._reading.held(self.commit):
            places = find_places(self._content, objects, at or {})
            places |= {(name,): thing for name, thing in named.items()}
            return load_into(self._content, places, rng=rng, strict=strict, assign=assign, map_location=map_location)

    # -- inside

    def _files(self) -> dict[str, Entry]:
        if self._beside is None:
            found = self._reading.entries(self.commit, "files")
            self._beside = {"/".join(map(str, entry.path)): entry for entry in found}
        return self._beside

    def _file(self, name: str) -> Entry:
        found = self._files().get(name)
        if found is None:
            raise PathNotFound(name, self.commit.short, nearest_names(name, self.files))
        return found
