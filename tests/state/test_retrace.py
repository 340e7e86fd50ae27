"""Retracing: what it returns is what a walk would find, or nothing, whatever became of the state."""

import ctypes
import gc
import random
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from chainstore.state import Content, Leaf, Trace, content_of, flatten


def data_of(content: Content, leaf: Leaf) -> bytes:
    nbytes = leaf.source.nbytes if leaf.source is not None else 0
    if content is None or isinstance(content, bytes):
        return content or b""
    return ctypes.string_at(content, nbytes) if isinstance(content, int) else bytes(content.read(0, nbytes))


def form(leaves: list[Leaf]) -> list[tuple[Any, ...]]:
    return [([(type(key), key) for key in leaf.path], leaf.node, leaf.spec) for leaf in leaves]


def traced(state: object) -> tuple[Trace, list[Leaf]]:
    leaves = flatten(state)
    trace = Trace.of(state, leaves)
    assert trace is not None
    return trace, leaves


def agrees(trace: Trace, before: list[Leaf], state: object) -> bool:
    """Return whether a state was retraced; if it was, a walk says the same of it."""
    contents = trace.follow(state)
    if contents is None:
        return False
    leaves = flatten(state)
    assert form(leaves) == form(before)
    for content, leaf in zip(contents, leaves, strict=True):
        assert data_of(content, leaf) == data_of(content_of(leaf.source), leaf)
    return True


def state() -> dict[str, Any]:
    """Return one of each kind of thing that can be retraced; equal each time, in other memory."""
    tied = torch.arange(6.0).reshape(2, 3)
    attributed = OrderedDict(w=torch.zeros(3), b=torch.ones(2))
    attributed.note = OrderedDict({"": {"version": 1}})  # type: ignore[attr-defined]  # as a module's `_metadata`
    return {
        "w": torch.arange(12.0).reshape(3, 4),
        "turned": torch.arange(12.0).reshape(3, 4).t(),
        "wide": torch.arange(3.0)[:, None].expand(3, 5),
        "gaps": torch.arange(40)[::4],
        "none": torch.empty(0, 3),
        "parameter": nn.Parameter(torch.ones(2)),
        "tied": [tied, tied, tied.detach(), tied.view(2, 3)],
        "array": np.arange(5, dtype=np.int16),
        "list": [1, torch.tensor(2.0), "x"],
        "tuple": (torch.zeros(2, dtype=torch.bool), None),
        "attributed": attributed,
        "default": defaultdict(list, a=torch.ones(1)),
        "queue": deque([torch.ones(1)], 3),
        1: {"True": 1.5, "values": {"a": [1, {2: 3}]}},
        "plain": {"nested": [0.0, "text", {"k": (1, True)}]},
    }


def test_a_state_of_the_same_form_is_retraced_and_a_plain_value_may_be_another() -> None:
    trace, leaves = traced(state())
    for number in range(3):
        later = state()
        later["w"] += number
        later["plain"] = {"nested": number, "more": [number] * number}
        assert agrees(trace, leaves, later)


def change(key: Any, value: Any) -> Callable[[dict[Any, Any]], None]:
    return lambda state: state.update({key: value})


def rename(old: Any, new: Any) -> Callable[[dict[Any, Any]], None]:
    def apply(state: dict[Any, Any]) -> None:
        items = [(new if key == old and type(key) is type(old) else key, value) for key, value in state.items()]
        state.clear()
        state.update(items)

    return apply


def untie(place: int, value: Callable[[list[Tensor]], object]) -> Callable[[dict[Any, Any]], None]:
    def apply(state: dict[Any, Any]) -> None:
        state["tied"][place] = value(state["tied"])

    return apply


def at(key: Any, item: Any, value: Any) -> Callable[[dict[Any, Any]], None]:
    def apply(state: dict[Any, Any]) -> None:
        state[key][item] = value

    return apply


OTHER_FORMS: dict[str, Callable[[dict[Any, Any]], Any]] = {
    "shape": change("w", torch.zeros(4, 3)),
    "dtype": change("w", torch.zeros(3, 4, dtype=torch.float64)),
    "strides": change("w", torch.zeros(4, 3).t()),
    "strides of what is turned": change("turned", torch.zeros(4, 3)),
    "requires grad": change("w", torch.zeros(3, 4, requires_grad=True)),
    "a parameter": change("w", nn.Parameter(torch.zeros(3, 4), requires_grad=False)),
    "no parameter": change("parameter", torch.ones(2, requires_grad=True)),
    "a buffer": change("w", nn.Buffer(torch.zeros(3, 4))),
    "sparse": change("w", torch.zeros(3, 4).to_sparse()),
    "an array for a tensor": change("w", np.zeros((3, 4), np.float32)),
    "a number for a tensor": change("w", 3),
    "expanded otherwise": change("wide", torch.zeros(3, 5)),
    "no longer empty": change("none", torch.zeros(1, 3)),
    "dtype of an array": change("array", np.arange(5, dtype=np.int32)),
    "a tensor for a plain value": change("plain", torch.zeros(1)),
    "a tensor in a plain value": at("plain", "nested", [torch.zeros(1)]),
    "one more": change("more", 1),
    "one less": lambda state: state.pop("array"),
    "another order": lambda state: state.update(w=state.pop("w")),
    "another name": rename("w", "v"),
    "a key that is equal": rename(1, True),
    "longer": lambda state: state["list"].append(1),
    "another container": lambda state: state.update(list=tuple(state["list"])),
    "a list for a queue": lambda state: state.update(queue=list(state["queue"])),
    "length of a queue": lambda state: state.update(queue=deque(state["queue"], 4)),
    "another factory": lambda state: state.update(default=defaultdict(int, state["default"])),
    "a dict with a factory": lambda state: state.update(default=dict(state["default"])),
    "one attribute more": lambda state: setattr(state["attributed"], "also", 1),
    "no attributes": lambda state: state.update(attributed=OrderedDict(state["attributed"])),
    "no longer tied": untie(1, lambda tied: tied[0].clone()),
    "tied by memory alone": untie(1, lambda tied: tied[0].detach()),
    "the same object": untie(2, lambda tied: tied[0]),
    "the same object as another alias": untie(3, lambda tied: tied[2]),
    "an alias with other memory": untie(2, lambda tied: tied[0].clone()),
    "a part of it": untie(3, lambda tied: tied[0][:1]),
    "turned over the same memory": untie(3, lambda tied: tied[0].view(3, 2)),
    "newly tied": lambda state: state.update(w=torch.zeros(3, 4), turned=state["w"]),
    "memory in memory": lambda state: at("tuple", slice(0), None) and state.update(gaps=state["w"].view(torch.int64)),
}
"""Name -> what makes another form of a state."""


@pytest.mark.parametrize("name", OTHER_FORMS)
def test_another_form_is_not_retraced(name: str) -> None:
    trace, leaves = traced(state())
    assert agrees(trace, leaves, state())
    other = state()
    OTHER_FORMS[name](other)
    assert form(flatten(other)) != form(leaves)
    assert trace.follow(other) is None


def test_memory_that_comes_to_lie_over_other_memory_is_noticed() -> None:
    whole = torch.arange(10.0)
    apart = {"a": torch.zeros(6), "b": torch.zeros(6)}
    trace, leaves = traced(apart)
    assert agrees(trace, leaves, {"a": torch.zeros(6), "b": torch.zeros(6)})
    assert trace.follow({"a": whole[:6], "b": whole[4:]}) is None
    assert agrees(trace, leaves, apart)


def test_what_does_not_show_its_memory_as_it_is_left_to_the_walk() -> None:
    trace, _ = traced({"w": torch.ones(5)})
    freed = torch.ones(5)
    freed.untyped_storage().resize_(0)
    assert trace.follow({"w": freed}) is None
    negative = torch.ones(5, dtype=torch.complex64).conj().imag
    assert negative.is_neg()
    assert trace.follow({"w": negative}) is None
    assert trace.follow({"w": torch.ones(10)[::2]}) is None
    trace, _ = traced({"w": np.ones(5)})
    assert trace.follow({"w": np.ones(5)[::-1]}) is None


@pytest.mark.parametrize(
    "value",
    [
        torch.Generator(),
        torch.eye(3).to_sparse(),
        [torch.arange(8.0)[:6], torch.arange(8.0)],
        {0.5: torch.ones(1)},
        {(1, 2): torch.ones(1)},
    ],
    ids=["generator", "sparse", "apart", "float", "tuple"],
)
def test_what_consists_of_parts_or_has_keys_that_are_equal_to_others_is_walked(value: object) -> None:
    held = {"x": value}
    traceable = isinstance(value, list)
    assert (Trace.of(held, flatten(held)) is not None) == traceable


def test_views_of_one_storage_are_walked() -> None:
    base = torch.arange(10.0)
    held = {"a": base[:6], "b": base[4:]}
    assert Trace.of(held, flatten(held)) is None


def test_a_trace_keeps_nothing_alive() -> None:
    held = state()
    trace = Trace.of(held, flatten(held))
    assert trace is not None and trace.follow(held) is not None
    gone = [weakref.ref(held["w"]), weakref.ref(held["array"]), weakref.ref(held["tied"][0])]
    del held
    gc.collect()
    assert all(each() is None for each in gone)


@pytest.mark.parametrize("seed", range(20))
def test_random_states_are_retraced_as_they_are_walked_or_not_at_all(seed: int) -> None:
    dice = random.Random(seed)

    def thing(depth: int) -> object:
        kind = dice.randrange(9 if depth else 6)
        match kind:
            case 0 | 1:
                return torch.full((dice.randint(1, 2),), dice.random(), dtype=dice.choice([torch.float32, torch.int64]))
            case 2:
                return pool[dice.randrange(len(pool))]
            case 3:
                return pool[dice.randrange(len(pool))].detach()
            case 4:
                return dice.choice([1, True, 1.0, "1", None, [1, {"a": 2}]])
            case 5:
                return np.full(dice.randint(1, 2), dice.random())
            case 6:
                return [thing(depth - 1) for _ in range(dice.randint(0, 2))]
        return {dice.choice(["a", "b", 1, True]): thing(depth - 1) for _ in range(dice.randint(0, 2))}

    same = 0
    for _ in range(60):
        pool = [torch.ones(2), torch.zeros(2)]
        first = {"a": thing(2), "b": thing(1), "c": thing(1)}
        leaves = flatten(first)
        trace = Trace.of(first, leaves)
        if trace is None:
            continue
        assert agrees(trace, leaves, first)
        for _ in range(8):
            changed = {**first, dice.choice("abc"): thing(1)}
            same += agrees(trace, leaves, changed)
            assert agrees(trace, leaves, first)
    assert same
