"""Checkpoints of torch.distributed.checkpoint: read in one process, without a process group, and without running code.

Their `.metadata` is a pickle.  It is read by an unpickler that finds the handful of classes such a file consists of,
and nothing else: whatever more is named in it is refused.  Values in it that are no tensors are read as
`torch.load(weights_only=True)` does.
"""

import io
import pathlib
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any, cast

import torch
import torch.serialization
from torch.distributed._shard.sharded_tensor import metadata as old_metadata
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import load

from chainstore.errors import InvalidInput
from chainstore.integrations.files import read_stream

MAX_METADATA_BYTES = 1 << 30
_pickle: Any = vars(torch.serialization)["pickle"]  # reached through torch, because we never unpickle ourselves
_AS_FILES = "commit the folder as it is with --as-file"
_WRONG: tuple[type[Exception], ...] = (  # what comes of metadata that do not fit together, or to the data
    OSError,
    EOFError,
    RuntimeError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    MemoryError,
    _pickle.UnpicklingError,
)


def _named(module: Any, *names: str) -> dict[tuple[str, str], object]:
    return {(module.__name__, name): getattr(module, name) for name in names if hasattr(module, name)}


_KNOWN: dict[tuple[str, str], object] = {
    **_named(
        metadata,
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    ),
    **_named(old_metadata, "TensorProperties", "MEM_FORMAT_ENCODING"),  # where they were before torch 2.4
    **_named(filesystem, "_StorageInfo"),
    **_named(torch.serialization, "_get_layout"),
    **_named(torch, "Size", "device"),
    **{("torch", name): value for name, value in vars(torch).items() if isinstance(value, torch.dtype)},
    ("collections", "OrderedDict"): OrderedDict,
    # where the checkpoint was saved is of no use here: a path is read as one that touches nothing
    **{
        (module, name): pathlib.PurePosixPath
        for module in ("pathlib", "pathlib._local")
        for name in ("PosixPath", "PurePosixPath")
    },
}


class _Refused(Exception):
    """A pickle names something that has no place in a checkpoint."""


class _MetadataUnpickler(_pickle.Unpickler):  # type: ignore[misc]
    def find_class(self, module: str, name: str) -> object:
        try:
            return _KNOWN[module, name]
        except KeyError:
            raise _Refused(f"{module}.{name}") from None

    def persistent_load(self, pid: object) -> object:
        raise _Refused("a reference to something outside of it")


def read_dcp(path: Path) -> dict[str, Any]:
    """Return the state in a checkpoint folder, nested as it was saved, on the host.

    Raises:
        InvalidInput: it is no such folder, parts of it are missing, or it holds objects that only unpickling could
            make.
    """
    described = _metadata(path)
    _check_places(path, described)
    try:
        flat = {name: _room(item, path) for name, item in described.state_dict_metadata.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is no process group is what is wanted here
            load(flat, storage_reader=_Reader(path, described), planner=_Planner(path), no_dist=True)
    except InvalidInput:
        raise
    except CheckpointException as error:  # what a rank raised, and here there is one
        cause = next(iter(error.failures.values()))[0]
        raise (cause if isinstance(cause, InvalidInput) else _unreadable(path, cause)) from None
    except _WRONG as error:
        raise _unreadable(path, error) from error
    return _nested(flat, described.planner_data, path)


def _unreadable(path: Path, error: BaseException) -> InvalidInput:
    return InvalidInput(f"{path} cannot be read: {_first_line(error)}", hint=_AS_FILES)


def _metadata(path: Path) -> Metadata:
    file = path / ".metadata"
    if not file.is_file():
        raise InvalidInput(f"{path} is no checkpoint of torch.distributed.checkpoint: it has no .metadata")
    if file.stat().st_size > MAX_METADATA_BYTES:
        raise InvalidInput(f"{file} is too long to be what it should be", hint=_AS_FILES)
    try:
        found = _MetadataUnpickler(io.BytesIO(file.read_bytes())).load()
        items = getattr(found, "state_dict_metadata", None)
        whole = isinstance(found, Metadata) and type(items) is dict and all(type(name) is str for name in items)
    except _Refused as error:
        raise InvalidInput(
            f"{file} is a pickle that names {error}, which has no place in a checkpoint and could run anything; it was "
            "not read",
            hint=_AS_FILES,
        ) from None
    except _WRONG as error:
        raise InvalidInput(f"{file} is damaged: {_first_line(error)}", hint=_AS_FILES) from error
    if not whole:
        raise InvalidInput(f"{file} does not describe a checkpoint", hint=_AS_FILES)
    return cast(Metadata, found)


def _room(item: object, path: Path) -> Any:
    """Return where an item is to be read to: memory for a tensor, None for a value."""
    if isinstance(item, TensorStorageMetadata):
        return torch.empty(item.size, dtype=item.properties.dtype)
    if isinstance(item, BytesStorageMetadata):
        return None
    raise InvalidInput(f"{path} holds a {type(item).__name__}, which is not known", hint=_AS_FILES)


def _check_places(path: Path, described: Metadata) -> None:
    """Refuse a checkpoint whose data would be read from outside its folder."""
    if not isinstance(described.storage_data, dict):
        raise InvalidInput(f"{path}/.metadata does not say where its data is", hint=_AS_FILES)
    for info in described.storage_data.values():
        name = getattr(info, "relative_path", None)
        if not isinstance(name, str) or Path(name).is_absolute() or ".." in Path(name).parts:
            raise InvalidInput(f"{path}/.metadata names data outside of its folder: {name!r}", hint=_AS_FILES)


class _Reader(FileSystemReader):
    """Reads the data, given metadata that were read with care."""

    def __init__(self, path: Path, described: Metadata) -> None:
        super().__init__(path)
        self._described = described

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        described = self._described
        described.storage_meta = described.storage_meta or StorageMeta()
        return described


class _Planner(DefaultLoadPlanner):
    """Reads every item under its flat name; values without running anything."""

    def __init__(self, path: Path) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._path = path

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        name = read_item.dest_index.fqn
        self.state_dict[name] = read_stream(value, f"{name!r} in {self._path}")


def _nested(flat: dict[str, Any], places: object, path: Path) -> dict[str, Any]:
    """Return the items under the keys that they were saved under; under their flat names where none are on record."""
    if not isinstance(places, dict):
        return flat
    root: dict[Any, Any] = {}
    for name, value in flat.items():
        keys = places.get(name) or (name,)
        if not isinstance(keys, tuple) or not all(type(key) in (str, int) for key in keys):
            raise InvalidInput(f"{path}/.metadata places {name!r} where nothing can be", hint=_AS_FILES)
        node = root
        for key in keys[:-1]:
            node = node.setdefault(key, {})
            if not isinstance(node, dict):
                raise InvalidInput(f"{path}/.metadata places {name!r} inside a value", hint=_AS_FILES)
        node[keys[-1]] = value
    return {key: _with_lists(value) for key, value in root.items()}


def _with_lists(node: Any) -> Any:
    """Return containers with lists where the keys were places in one, as the checkpoint's writer flattened them."""
    if type(node) is not dict:
        return node
    items = {key: _with_lists(value) for key, value in node.items()}
    is_list = bool(items) and all(type(key) is int for key in items) and sorted(items) == list(range(len(items)))
    return [items[place] for place in range(len(items))] if is_list else items


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).strip().partition("\n")[0]
