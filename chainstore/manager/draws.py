"""Draws: the generators that the order and the content of a loader's batches depend on, taken and put back.

Samplers and datasets draw from the generators that a process has (those of Python, NumPy and torch), and from their
own: a `generator=` of a sampler, a `random.Random` or a NumPy generator that is an attribute of a sampler or dataset.
A distributed sampler draws nothing and counts epochs instead; its count belongs here too.
"""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

from chainstore.errors import StateMismatch
from chainstore.live import capture, restore

_PARTS = ("sampler", "batch_sampler", "dataset")  # attributes to look into, whatever their type
_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)


class Draws:
    """The generators of the process, and those that some object and its samplers and datasets own.

    Args:
        root: a data loader, or in a worker its dataset.
    """

    def __init__(self, root: object) -> None:
        self._root = root

    def states(self) -> dict[str, Any]:
        """Return all states, copies; nothing is drawn."""
        return {"rng": capture()["rng"], **self.owned()}

    def owned(self) -> dict[str, Any]:
        """Return the states of what the object owns only."""
        parts = list(_parts(self._root))
        return {
            "generators": [_state(generator) for generator in _generators(parts)],
            "epochs": [part.epoch for part in parts if _counts(part)],
        }

    def put(self, states: dict[str, Any]) -> None:
        """Put back what `states` or `owned` returned.

        Raises:
            StateMismatch: the object owns others than it did.
        """
        parts = list(_parts(self._root))
        generators, counting = list(_generators(parts)), [part for part in parts if _counts(part)]
        if len(generators) != len(states["generators"]) or len(counting) != len(states["epochs"]):
            raise StateMismatch(
                f"the loader had {len(states['generators'])} generators of its own and has {len(generators)}",
                hint="resume with the samplers and the dataset that the run had",
            )
        for generator, state in zip(generators, states["generators"], strict=True):
            _put(generator, state)
        for part, epoch in zip(counting, states["epochs"], strict=True):
            if part.epoch != epoch:
                part.set_epoch(epoch)
        if "rng" in states:
            restore({"rng": states["rng"]})


def same(one: Any, other: Any) -> bool:
    """Tell whether two states are equal."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and not (one and isinstance(one[0], int)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def copied(states: Any) -> Any:
    """Return states whose arrays are copies."""
    if isinstance(states, torch.Tensor):
        return states.clone()
    if isinstance(states, np.ndarray):
        return states.copy()
    if isinstance(states, dict):
        return {key: copied(value) for key, value in states.items()}
    if isinstance(states, list | tuple) and not (states and isinstance(states[0], int)):
        return type(states)(map(copied, states))
    return states


def without_tensors(states: Any) -> Any:
    """Return states with bytes for tensors, which would travel between processes by file descriptor."""
    if isinstance(states, torch.Tensor):
        return states.numpy().tobytes()
    if isinstance(states, dict):
        return {key: without_tensors(value) for key, value in states.items()}
    return [without_tensors(value) for value in states] if isinstance(states, list) else states


def with_tensors(states: Any) -> Any:
    """Return states as they were before `without_tensors`."""
    if isinstance(states, bytes):
        return torch.frombuffer(bytearray(states), dtype=torch.uint8)
    if isinstance(states, dict):
        return {key: with_tensors(value) for key, value in states.items()}
    return [with_tensors(value) for value in states] if isinstance(states, list) else states


def _parts(root: object) -> Iterator[Any]:
    """Yield an object and the samplers and datasets below it, in an order that does not change."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        part = waiting.pop(0)
        if id(part) in seen or not hasattr(part, "__dict__"):
            continue
        seen.add(id(part))
        yield part
        for name, value in vars(part).items():
            if name in _PARTS or isinstance(value, Sampler | Dataset):
                waiting.append(value)
            elif name == "datasets" and isinstance(value, list | tuple):
                waiting += value


def _generators(parts: list[Any]) -> Iterator[Any]:
    """Yield the generators among the attributes of objects, each once."""
    seen: set[int] = set()
    for part in parts:
        for value in vars(part).values():
            if isinstance(value, _GENERATORS) and id(value) not in seen:
                seen.add(id(value))
                yield value


def _counts(part: Any) -> bool:
    return hasattr(part, "set_epoch") and type(getattr(part, "epoch", None)) is int


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator.get_state()


def _put(generator: Any, state: Any) -> None:
    try:
        if isinstance(generator, random.Random):
            generator.setstate(state)
        elif isinstance(generator, np.random.Generator):
            generator.bit_generator.state = state
        else:
            generator.set_state(state)
    except (TypeError, ValueError, RuntimeError) as error:
        raise StateMismatch(f"a {type(generator).__name__} of the loader cannot be put back: {error}") from error
