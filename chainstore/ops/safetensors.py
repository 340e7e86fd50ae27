"""Safetensors: what a snapshot's tensors look like as files of that format, written one tensor at a time.

A plan is made from the trees alone and says every file's exact size; bytes are read when a file is written.  The
format cannot say that two names are one tensor, so tied tensors are written as copies, and named in the plan.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import IO, Any

from chainstore.errors import InvalidInput, PathNotFound
from chainstore.model import safetensors
from chainstore.model.manifest import Manifest
from chainstore.model.paths import Path, compile_glob, format_path
from chainstore.model.spec import DTYPES, Spec
from chainstore.model.tree import Entry
from chainstore.state import flatten, nodes, references, shown_spec

_WHOLE = frozenset({*nodes.STORED, *nodes.VIEWS})  # codes of arrays that are one run of items
_PIECE_BYTES = 16 << 20
_WRITE = "--format torch and torch.save keep every tensor"


@dataclass(frozen=True, slots=True)
class Tensors:
    """Where tensors come from.

    Attributes:
        manifest: of the whole state.  paths: those of its arrays and plain values.  fetch: reads what is at a path.
    """

    manifest: Manifest
    paths: Sequence[Path]
    fetch: Callable[[Path], Any]


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """One file to be written.

    Attributes:
        name: of the file.  nbytes: exactly.  write: puts its bytes into a stream.
    """

    name: str
    nbytes: int
    write: Callable[[IO[bytes]], None]


@dataclass(frozen=True, slots=True)
class SafetensorsPlan:
    """What is going to be written.

    Attributes:
        files: shards, then the index where there are several.
        tied: names of tensors that share memory with one named before; written as copies.
        left_out: paths that were selected and are no arrays.
    """

    files: tuple[SafetensorsFile, ...]
    tied: tuple[str, ...]
    left_out: tuple[str, ...]

    def notices(self) -> list[str]:
        """Return what a person should know: tensors written twice, values left out."""
        told = []
        if self.tied:
            told.append(
                f"{_listed(self.tied)} tied to a tensor named before, and written as a copy: safetensors knows no ties"
            )
        if self.left_out:
            told.append(f"{_listed(self.left_out)} left out, being no tensors")
        return told


@dataclass(frozen=True, slots=True)
class _Tensor:
    path: Path
    spec: Spec  # as written


def plan(
    source: Tensors,
    select: Sequence[str],
    exclude: Sequence[str],
    *,
    dtype: str | None,
    shard_bytes: int | None,
    stem: str,
) -> SafetensorsPlan:
    """Return the files that hold the selected tensors.

    A tensor is named by its keys, joined by dots, without the keys that the selection spells out in front of its
    first wildcard: `model/**` names `model/layer.0/weight` as `layer.0.weight`.

    Args:
        dtype: torch's name of the type that floating-point tensors are written in; None keeps theirs.
        shard_bytes: the most in one file; None for a single file.

    Raises:
        PathNotFound: nothing is selected.
        InvalidInput: a tensor has no place in the format, or two would have one name.
    """
    if dtype is not None and (dtype not in DTYPES or DTYPES[dtype].kind != "float"):
        raise InvalidInput(f"dtype is the name of a floating-point type such as bfloat16, not {dtype!r}")
    tensors: dict[str, _Tensor] = {}
    left_out: list[str] = []
    tied: list[str] = []
    owners: set[Path] = set()
    strip = min((_spelled_out(glob) for glob in select), default=0)
    for path in _chosen(source.paths, select, exclude):
        entry = source.manifest[path]
        spec = shown_spec(entry, source.manifest.get)
        if spec is None:
            left_out.append(format_path(path))
            continue
        name = _checked_name(path, strip, tensors)
        spec = _written_spec(_behind(entry, source.manifest), spec, dtype, name)
        tensors[name] = _Tensor(path, spec)
        owner = _owner(entry)
        if owner in owners:
            tied.append(name)
        owners.add(owner)
    if not tensors:
        raise PathNotFound(" ".join(select))
    return SafetensorsPlan(tuple(_files(source, tensors, shard_bytes, stem)), tuple(tied), tuple(left_out))


def save(files: Sequence[SafetensorsFile], folder: FilePath) -> tuple[FilePath, ...]:
    """Write files, each whole or not at all, and return where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for file in files:
        target, draft = folder / file.name, folder / f".{file.name}.{os.getpid()}.part"
        try:
            with draft.open("wb") as stream:
                file.write(stream)
                stream.flush()
                os.fsync(stream.fileno())
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
        written.append(target)
    return tuple(written)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more + (" is" if len(names) == 1 else " are")


def _chosen(paths: Sequence[Path], select: Sequence[str], exclude: Sequence[str]) -> list[Path]:
    wanted, unwanted = [compile_glob(glob) for glob in select], [compile_glob(glob) for glob in exclude]
    chosen = (path for path in paths if path and any(match(path) for match in wanted))
    return [path for path in chosen if not any(match(path) for match in unwanted)]


def _spelled_out(glob: str) -> int:
    """Return how many keys a glob spells out before its first wildcard, its last key not counted."""
    parts = glob.split("/")
    plain = next((place for place, part in enumerate(parts) if "*" in part), len(parts) - 1)
    return min(plain, len(parts) - 1)


def _checked_name(path: Path, strip: int, taken: Mapping[str, _Tensor]) -> str:
    name = ".".join(key if isinstance(key, str) else format_path((key,)) for key in path[strip:])
    if name in taken:
        raise InvalidInput(
            f"{format_path(path)!r} and {format_path(taken[name].path)!r} would both be named {name!r}",
            hint="select one of them",
        )
    return name


def _written_spec(entry: Entry, spec: Spec, dtype: str | None, name: str) -> Spec:
    code = entry.node[0] if isinstance(entry.node, list) else None
    if code not in _WHOLE:
        raise InvalidInput(f"{name} is not a dense array, which is all that safetensors knows", hint=_WRITE)
    if dtype is not None and spec.dtype in DTYPES and DTYPES[spec.dtype].kind == "float":
        spec = Spec(dtype, spec.shape)
    safetensors.check_dtype(spec.dtype, name)
    return spec


def _behind(entry: Entry, manifest: Manifest) -> Entry:
    """Return the array that an alias is another name of; any other entry as it is."""
    while isinstance(entry.node, list) and entry.node[:1] == [nodes.ALIAS]:
        entry = manifest[references(entry.node)[0]]
    return entry


def _owner(entry: Entry) -> Path:
    """Return the path of the entry whose memory an array shows."""
    return next(iter(references(entry.node)), entry.path)


def _files(
    source: Tensors, tensors: Mapping[str, _Tensor], shard_bytes: int | None, stem: str
) -> list[SafetensorsFile]:
    specs = {name: tensor.spec for name, tensor in tensors.items()}
    groups = safetensors.split(specs, shard_bytes)
    names = safetensors.shard_names(stem, len(groups))
    files = [
        _shard(source, file, {name: tensors[name] for name in group}) for file, group in zip(names, groups, strict=True)
    ]
    if len(groups) > 1:
        total = sum(spec.nbytes for spec in specs.values())
        index = safetensors.encode_index(zip(names, groups, strict=True), total)
        files.append(SafetensorsFile(f"{stem}.safetensors.index.json", len(index), _writer(index)))
    return files


def _writer(data: bytes) -> Callable[[IO[bytes]], None]:
    def write(stream: IO[bytes]) -> None:
        stream.write(data)

    return write


def _shard(source: Tensors, file: str, tensors: Mapping[str, _Tensor]) -> SafetensorsFile:
    specs = {name: tensor.spec for name, tensor in tensors.items()}
    header = safetensors.encode_header(specs)

    def write(stream: IO[bytes]) -> None:
        stream.write(header)
        for name in safetensors.order(specs):
            _write_tensor(stream, source.fetch(tensors[name].path), specs[name], name)

    return SafetensorsFile(file, len(header) + sum(spec.nbytes for spec in specs.values()), write)


def _write_tensor(stream: IO[bytes], value: Any, spec: Spec, name: str) -> None:
    (leaf,) = flatten(_plain(value, spec.dtype, name))
    if leaf.source is None or leaf.spec != spec:
        raise InvalidInput(f"{name} was not read as {spec.dtype} of shape {spec.shape}", hint=_WRITE)
    piece = max(_PIECE_BYTES // spec.itemsize, 1) * spec.itemsize
    for start in range(0, spec.nbytes, piece):
        stream.write(leaf.source.read(start, min(start + piece, spec.nbytes)))


def _plain(value: Any, dtype: str, name: str) -> Any:
    """Return an array in C order and of a type; neither library is imported for it, since the array brought its own."""
    if hasattr(value, "resolve_conj"):
        wanted = getattr(sys.modules["torch"], dtype)
        return value.detach().cpu().to(wanted).resolve_conj().resolve_neg().contiguous()
    if str(value.dtype) == dtype:
        return value.copy(order="C")
    try:
        return value.astype(dtype, order="C")
    except TypeError as error:
        raise InvalidInput(f"{name} is an array of NumPy, which lacks {dtype}") from error
