"""Traces: the states of one training run as a folder, so that whoever measures how they are stored need not train.

    trace.json    what it is, and every state: its small values, and where its arrays are
    arrays.bin    the arrays, each content once

A state that comes back has the same memory from one state to the next, as in training: what changed is read into the
tensors that the state before had.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.workloads import State, raw_bytes

SCHEMA = "chainstore.trace/1"
VALUES, ARRAYS = "trace.json", "arrays.bin"


@dataclass(frozen=True, slots=True)
class Moment:
    """One recorded state.

    Attributes:
        step: optimizer steps so far.
        branch: which line of training it is on.
        parent: number of the state it came from, None for the first.
        tree: its containers and values, arrays by offset.
        raw_bytes: of its arrays.
    """

    step: int
    branch: str
    parent: int | None
    tree: Any
    raw_bytes: int


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded run.

    Attributes:
        key: what it was made from; another key is another trace.
        what: in words.
        part: path of an array, and of the part of the state around it, for who reads a part only.
    """

    folder: Path
    key: str
    what: str
    part: tuple[str, str]
    moments: tuple[Moment, ...] = field(repr=False)

    @property
    def raw_bytes(self) -> int:
        """Of all states, each as a whole."""
        return sum(moment.raw_bytes for moment in self.moments)


class Recorder:
    """Writes a trace; it is there, under its name, when `close` has returned and not before."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._file = (folder / ARRAYS).open("wb")
        self._known: dict[bytes, int] = {}
        self._end = 0
        self._moments: list[Moment] = []

    def add(self, state: State, step: int, branch: str = "main", parent: int | None = None) -> int:
        """Record a state, and return its number.

        Args:
            parent: by default the state that was added before.
        """
        if parent is None and self._moments:
            parent = len(self._moments) - 1
        self._moments.append(Moment(step, branch, parent, self._node(state), raw_bytes(state)))
        return len(self._moments) - 1

    def close(self, key: str, what: str, part: tuple[str, str]) -> Trace:
        """Finish it."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        made = {"schema": SCHEMA, "key": key, "what": what, "part": part}
        states = [asdict(moment) for moment in self._moments]
        (self._folder / VALUES).write_text(json.dumps({**made, "states": states}))
        return Trace(self._folder, key, what, part, tuple(self._moments))

    def _node(self, value: object) -> object:
        if isinstance(value, torch.Tensor):
            return {"a": [self._put(value), str(value.dtype).removeprefix("torch."), list(value.shape)]}
        if isinstance(value, Mapping):
            return {"d": [[key, self._node(item)] for key, item in value.items()]}
        if isinstance(value, list | tuple):
            return {"t" if isinstance(value, tuple) else "l": [self._node(item) for item in value]}
        if value is None or isinstance(value, bool | int | float | str):
            return {"v": value}
        raise TypeError(f"a trace cannot hold a {type(value).__name__}")

    def _put(self, tensor: torch.Tensor) -> int:
        data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        name = hashlib.blake2b(data, digest_size=20).digest()
        if name not in self._known:
            self._known[name] = self._end
            self._end += self._file.write(data.data)
        return self._known[name]


def find(folder: Path, key: str) -> Trace | None:
    """Return the trace in a folder if it was made from this key, else None."""
    try:
        kept = json.loads((folder / VALUES).read_text())
    except FileNotFoundError:
        return None
    if kept.get("schema") != SCHEMA or kept["key"] != key:
        return None
    moments = tuple(Moment(**state) for state in kept["states"])
    return Trace(folder, key, kept["what"], (kept["part"][0], kept["part"][1]), moments)


class Player:
    """Gives the states of a trace back.  The state it gave before is the same memory, with other values."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._file = (trace.folder / ARRAYS).open("rb", buffering=0)
        self._live: dict[tuple[object, ...], tuple[int, torch.Tensor]] = {}

    def state(self, number: int) -> State:
        """Return a state as it was recorded."""
        made = self._value(self._trace.moments[number].tree, ())
        assert isinstance(made, dict)
        return made

    def close(self) -> None:
        self._file.close()

    def _value(self, node: Any, path: tuple[object, ...]) -> object:
        ((kind, what),) = node.items()
        if kind == "v":
            return what
        if kind == "a":
            return self._array(path, *what)
        if kind == "d":
            return {key: self._value(item, (*path, key)) for key, item in what}
        items = [self._value(item, (*path, place)) for place, item in enumerate(what)]
        return tuple(items) if kind == "t" else items

    def _array(self, path: tuple[object, ...], offset: int, dtype: str, shape: list[int]) -> torch.Tensor:
        name = (*path, dtype, *shape)
        held = self._live.get(name)
        if held is None:
            held = -1, torch.empty(shape, dtype=getattr(torch, dtype))
        if held[0] != offset:
            _fill(self._file.fileno(), offset, held[1])
            held = self._live[name] = offset, held[1]
        return held[1]


def _fill(file: int, offset: int, tensor: torch.Tensor) -> None:
    room = memoryview(tensor.reshape(-1).view(torch.uint8).numpy())
    while len(room):
        got = os.preadv(file, [room], offset)
        if not got:
            raise EOFError("a trace is shorter than it says")
        offset, room = offset + got, room[got:]
