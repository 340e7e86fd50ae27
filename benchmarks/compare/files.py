"""Peers that write each state as a whole: torch.save, safetensors, torch.distributed.checkpoint."""

import importlib.util
import os
import shutil
import warnings
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from benchmarks.compare.peer import Peer, changed_between
from benchmarks.workloads import State, flat, same_bits

if importlib.util.find_spec("safetensors"):  # a peer is optional
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

KEPT = 2  # files of the newest states, to compare them


class FilePeer(Peer):
    """Numbered files, the newest two kept."""

    def place(self, age: int = 0) -> Path:
        """Return the newest file (0) or an older one."""
        return self.folder / f"{self.saves - 1 - age:06d}"

    def places(self) -> list[Path]:
        return sorted(self.folder.iterdir())

    def next_place(self) -> Path:
        self.saves += 1
        return self.place()

    def prune(self) -> None:
        for path in self.places()[:-KEPT]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


class TorchSave(FilePeer):
    """What most scripts do."""

    name = "torch.save"
    can = frozenset({"commit", "restore", "open", "log", "diff", "partial", "rows"})
    durable = False
    sync = False

    @classmethod
    def version(cls) -> str | None:
        return str(torch.__version__)

    def save(self, state: State, step: int, loss: float) -> None:
        with self.next_place().open("wb") as file:
            torch.save(state, file)
            if self.sync:
                file.flush()
                os.fsync(file.fileno())

    def load(self) -> object:
        return torch.load(self.place())

    def names(self) -> int:
        return len(flat(self._mapped()))

    def tensor(self, path: str) -> torch.Tensor:
        return flat(self._mapped())[path].clone()

    def rows(self, path: str, start: int, stop: int) -> torch.Tensor:
        return flat(self._mapped())[path][start:stop].clone()

    def history(self) -> list[tuple[int, float]]:
        states = (torch.load(path, mmap=True) for path in self.places())
        return [(state["step"], state["loss"]) for state in states]

    def changed(self) -> set[str]:
        return changed_between(self._mapped(1), self._mapped())

    def _mapped(self, age: int = 0) -> Any:
        return torch.load(self.place(age), mmap=True)


class TorchSaveSync(TorchSave):
    """The same, and on the disk when it returns.  Reads are those of `torch.save`, so it takes part in none."""

    name = "torch.save + fsync"
    can = frozenset({"commit"})
    durable = True
    sync = True


class Safetensors(FilePeer):
    """Tensors by name in one file, synced; plain values are not kept.

    What it gives is a view of the mapped file, read when it is touched.  A state to train on is copied out of it, as
    the other peers do; so is what is read in part.
    """

    name = "safetensors"
    can = frozenset({"commit", "restore", "open", "log", "diff", "partial", "rows"})
    whole = False

    @classmethod
    def version(cls) -> str | None:
        return metadata.version("safetensors") if importlib.util.find_spec("safetensors") else None

    def save(self, state: State, step: int, loss: float) -> None:
        place = self.next_place()
        save_file(flat(state), place, {"step": str(step), "loss": repr(loss)})
        with place.open("rb") as file:
            os.fsync(file.fileno())

    def load(self) -> object:
        return {name: tensor.clone() for name, tensor in load_file(self.place()).items()}

    def names(self) -> int:
        with safe_open(self.place(), "pt") as file:
            return len(file.keys())

    def tensor(self, path: str) -> torch.Tensor:
        with safe_open(self.place(), "pt") as file:
            return torch.clone(file.get_tensor(path))

    def rows(self, path: str, start: int, stop: int) -> torch.Tensor:
        with safe_open(self.place(), "pt") as file:
            return torch.clone(file.get_slice(path)[start:stop])

    def history(self) -> list[tuple[int, float]]:
        return [self._note(path) for path in self.places()]

    def changed(self) -> set[str]:
        with safe_open(self.place(1), "pt") as old, safe_open(self.place(), "pt") as new:
            return {name for name in new.keys() if not same_bits(old.get_tensor(name), new.get_tensor(name))}  # noqa: SIM118

    def _note(self, path: Path) -> tuple[int, float]:
        with safe_open(path, "pt") as file:
            note = file.metadata()
        return int(note["step"]), float(note["loss"])


class Dcp(FilePeer):
    """torch.distributed.checkpoint of one process: a folder for each state, its files synced."""

    name = "DCP"
    can = frozenset({"commit", "restore", "open", "partial"})

    @classmethod
    def version(cls) -> str | None:
        return str(torch.__version__)

    def save(self, state: State, step: int, loss: float) -> None:
        self.shape = state
        _quietly(save, state, checkpoint_id=self.next_place(), no_dist=True)

    def load(self) -> object:
        """It loads into a state of the same shape, which is made here."""
        state = _empty(self.shape)
        _quietly(load, state, checkpoint_id=self.place(), no_dist=True)
        return state

    def names(self) -> int:
        kept = FileSystemReader(self.place()).read_metadata().state_dict_metadata
        return sum(isinstance(value, TensorStorageMetadata) for value in kept.values())

    def tensor(self, path: str) -> torch.Tensor:
        name = path.replace("/", ".")
        kept = FileSystemReader(self.place()).read_metadata().state_dict_metadata[name]
        assert isinstance(kept, TensorStorageMetadata)
        state = {name: torch.empty(kept.size, dtype=kept.properties.dtype)}
        _quietly(load, state, checkpoint_id=self.place(), no_dist=True)
        return state[name]


def _empty(value: object) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_like(value)
    if isinstance(value, Mapping):
        return {key: _empty(item) for key, item in value.items()}
    return [_empty(item) for item in value] if isinstance(value, list) else value


def _quietly(call: Any, *arguments: Any, **options: Any) -> None:
    """Call without the warning that there is no process group."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call(*arguments, **options)
