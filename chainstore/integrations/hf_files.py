"""Checkpoint folders of Hugging Face: weights in shards, states of the trainer, and small files beside them.

checkpoint = read_hf(Path("checkpoint-500"))
checkpoint.state["model"], checkpoint.state["optimizer"], checkpoint.step, checkpoint.files["config.json"]
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chainstore.errors import InvalidInput
from chainstore.integrations.files import read_torch
from chainstore.integrations.kinds import walk
from chainstore.integrations.safetensors_files import read_safetensors

_MODELS = ("model", "pytorch_model")
_ADAPTERS = ("adapter_model",)
_READERS: dict[str, Callable[[Path], Any]] = {".safetensors": read_safetensors, ".bin": read_torch}
_STATES = {  # file -> key in the state
    "optimizer.pt": "optimizer",
    "optimizer.bin": "optimizer",
    "scheduler.pt": "scheduler",
    "scaler.pt": "scaler",
    "rng_state.pth": "rng",
}
MAX_JSON_BYTES = 1 << 28
_TRAINER = "trainer_state.json"
_NOT_METRICS = {"step", "epoch"}


@dataclass(frozen=True, slots=True)
class HfCheckpoint:
    """What a folder holds.

    Attributes:
        state: "model" or "adapter", and those of "optimizer", "scheduler", "scaler", "rng" that are there.
        files: name below the folder -> place, of everything that is not in the state.
        step, epoch, metrics: as `trainer_state.json` tells them.
        notices: what a person should know.
    """

    state: dict[str, Any]
    files: dict[str, Path]
    step: int | None
    epoch: float | None
    metrics: dict[str, float]
    notices: tuple[str, ...]


def read_hf(path: Path) -> HfCheckpoint:
    """Return what a checkpoint folder holds; no code in it is run.

    Weights are mapped into memory.  Files of torch.save that would have to run code (`training_args.bin`) are kept as
    files.

    Raises:
        InvalidInput: there are no weights, or shards are missing or damaged.
    """
    state, taken = _weights(path)
    notices: list[str] = []
    for name, key in _STATES.items():
        if (path / name).is_file() and key not in state:
            try:
                state[key] = read_torch(path / name)
                taken.add(name)
            except InvalidInput as error:
                notices.append(f"{name} is kept as a file: {error}")
    files = {name: place for name, place in walk(path) if name not in taken}
    step, epoch, metrics = _trainer(path / _TRAINER)
    return HfCheckpoint(state, files, step, epoch, metrics, tuple(notices))


def _weights(path: Path) -> tuple[dict[str, Any], set[str]]:
    """Return the weights by role, and the names of the files that they, or their index, are in."""
    state: dict[str, Any] = {}
    taken: set[str] = set()
    for role, stems in (("model", _MODELS), ("adapter", _ADAPTERS)):
        for index, files in _layouts(path, stems):
            state[role] = _read_shards(path, files)
            taken |= files.keys() | index
            break
    if not state:
        raise InvalidInput(
            f"{path} holds no model.safetensors, pytorch_model.bin or adapter_model.safetensors",
            hint="commit the folder as it is with --as-file",
        )
    return state, taken


def _layouts(path: Path, stems: tuple[str, ...]) -> Iterator[tuple[set[str], dict[str, frozenset[str] | None]]]:
    """Yield the ways weights may lie here, best first: names of indexes, and file -> tensors it must hold."""
    for stem in stems:
        for suffix in _READERS:
            name, index = f"{stem}{suffix}", f"{stem}{suffix}.index.json"
            if (path / index).is_file():
                yield {index}, _shards(path, index)
            if (path / name).is_file():
                yield set(), {name: None}


def _shards(path: Path, index: str) -> dict[str, frozenset[str] | None]:
    places = _json(path / index).get("weight_map")
    if not isinstance(places, dict) or not all(type(file) is str for file in places.values()):
        raise InvalidInput(f"{path / index} does not say which tensor is where")
    files: dict[str, set[str]] = {}
    for tensor, file in places.items():
        if Path(file).name != file or Path(file).suffix not in _READERS:
            raise InvalidInput(f"{path / index} names {file!r}, which is no file of weights beside it")
        files.setdefault(file, set()).add(tensor)
    return {file: frozenset(names) for file, names in files.items()}


def _read_shards(path: Path, files: Mapping[str, frozenset[str] | None]) -> dict[str, Any]:
    missing = [name for name in files if not (path / name).is_file()]
    if missing:
        raise InvalidInput(f"{path} lacks {', '.join(missing[:5])}, which its index names")
    weights: dict[str, Any] = {}
    for name, expected in files.items():
        found = _READERS[Path(name).suffix](path / name)
        if not isinstance(found, dict):
            raise InvalidInput(f"{path / name} holds a {type(found).__name__}, not tensors by name")
        absent = sorted((expected or frozenset()) - found.keys())
        if absent:
            raise InvalidInput(f"{path / name} lacks {absent[0]!r}, which the index says is in it")
        weights |= found
    return weights


def _trainer(path: Path) -> tuple[int | None, float | None, dict[str, float]]:
    """Return step, epoch and the metrics of that step from `trainer_state.json`, nothing where it is not there."""
    if not path.is_file():
        return None, None, {}
    told = _json(path)
    step, epoch, history = told.get("global_step"), told.get("epoch"), told.get("log_history")
    metrics: dict[str, float] = {}
    for line in history if isinstance(history, list) else []:
        if isinstance(line, dict) and line.get("step") == step:
            metrics |= {name: float(value) for name, value in line.items() if _is_metric(name, value)}
    return (
        step if type(step) is int and step >= 0 else None,
        float(epoch) if isinstance(epoch, int | float) and math.isfinite(epoch) else None,
        metrics,
    )


def _is_metric(name: str, value: object) -> bool:
    return name not in _NOT_METRICS and isinstance(value, int | float) and not isinstance(value, bool)


def _json(path: Path) -> dict[str, Any]:
    if path.stat().st_size > MAX_JSON_BYTES:
        raise InvalidInput(f"{path} is too long to be what it should be")
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{path} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidInput(f"{path} is no JSON object")
    return found
