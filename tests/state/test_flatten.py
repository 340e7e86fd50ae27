"""The walk and the way back, over states of all kinds."""

import random
import warnings
from collections import OrderedDict, defaultdict, deque

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from chainstore.errors import Malformed, PathNotFound, UnsupportedState
from chainstore.model.paths import Attr, compile_glob
from chainstore.model.spec import Spec
from chainstore.model.tree import Entry
from chainstore.state import Assembly, compare, flatten, nodes, references, shown_spec
from chainstore.testing.round_trip import assemble, round_trip, to_entries
from chainstore.testing.strategies import plain_values
from chainstore.testing.tensors import assert_same, training_states

warnings.filterwarnings("ignore", category=UserWarning)
SLOW = settings(deadline=None, max_examples=120, suppress_health_check=list(HealthCheck))


def paths(state):
    return [leaf.path for leaf in flatten(state)]


def refused(state):
    with pytest.raises(UnsupportedState) as caught:
        flatten(state)
    return caught.value.paths


# ---- the walk


@SLOW
@given(training_states())
def test_every_training_state_comes_back_as_it_was(state):
    assert_same(state, round_trip(state, target=24))


@SLOW
@given(training_states())
def test_nodes_hold_no_values_and_paths_are_unique(state):
    leaves = flatten({"secret": "hunter2", "state": state})

    assert len({leaf.path for leaf in leaves}) == len(leaves)
    assert not any("hunter2" in str(leaf.node) for leaf in leaves)


@settings(deadline=None, max_examples=50, suppress_health_check=list(HealthCheck))
@given(plain_values())
def test_a_value_that_holds_no_array_is_one_leaf_wherever_it_stands(value):
    leaves = flatten({"x": value})

    assert [leaf.node for leaf in leaves] == [[nodes.DICT], [nodes.VALUE]]
    assert_same({"x": value}, round_trip({"x": value}))


def test_the_root_is_structure_even_if_it_holds_no_array():
    assert paths({"a": {"b": 1}, 2: [1]}) == [(), ("a",), (2,)]
    assert paths([1, [2]]) == [(), (0,), (1,)]
    assert paths({}) == [()]
    assert paths(5) == [()]


def test_containers_above_an_array_are_structure_and_others_are_not():
    state = {"m": [{"w": torch.ones(1)}, {"lr": 0.1}], "rng": random.getstate()}

    assert paths(state) == [(), ("m",), ("m", 0), ("m", 0, "w"), ("m", 1), ("rng",)]


@pytest.mark.parametrize("state", [[], {}, (), OrderedDict(), deque(), 7, None, "x", torch.ones(2), [torch.ones(1)]])
def test_any_root_comes_back(state):
    assert_same(state, round_trip(state))


def test_containers_keep_what_makes_them_what_they_are():
    t = torch.ones(1)
    state = {
        "default": defaultdict(list, {"a": [t]}),
        "none": defaultdict(None, a=t),
        "deque": deque([t, 1], maxlen=5),
        "typed": {1: t, "1": t, None: t, b"1": t, (1, "a"): t, 2.5: t, False: t},
        "z": t,
        "a": t,
    }
    back = round_trip(state)

    assert_same(state, back)
    assert list(back) == ["default", "none", "deque", "typed", "z", "a"]


def test_a_list_used_twice_comes_back_as_two_lists_of_the_same_tensor():
    shared = [torch.ones(1)]

    a, b = round_trip([shared, shared])

    assert a is not b and a[0] is b[0]


def test_a_container_that_contains_itself_is_refused_by_path():
    array, plain = {"t": torch.ones(1)}, [1]
    array["inner"] = [array]
    plain.append({"again": plain})

    assert refused({"a": array}) == {"a/inner/0": "dict contains itself"}
    assert set(refused({"p": plain})) == {"p/1/again"}


def test_containers_nested_too_deep_are_refused_and_150_are_not():
    def nest(depth, value):
        for _ in range(depth):
            value = [value]
        return value

    assert round_trip(nest(140, torch.ones(1)))
    assert "deep" in next(iter(refused(nest(10_000, torch.ones(1))).values()))


def test_every_offending_path_is_named():
    class Unknown:
        pass

    class MyDict(dict):
        pass

    state = {
        "a": [Unknown(), torch.ones(1)],
        "b": {"c": {"d": Unknown()}},
        "e": MyDict(x=torch.ones(1)),
        "f": {frozenset(): torch.ones(1)},
        "g": {torch.ones(1)},
        "h": defaultdict(lambda: 0, x=torch.ones(1)),
        "i": {float("nan"): torch.ones(1)},
    }

    found = refused(state)

    assert {"a/0", "b/c/d", "e", "h", "i/nan"} <= set(found)
    assert any(path.startswith("f/") for path in found) and any(path.startswith("g") for path in found)
    assert len(found) == 7
    assert "Unknown" in found["a/0"] and "MyDict" in found["e"]


def test_whoever_hands_over_a_module_is_told_to_hand_over_its_state_dict():
    assert "state_dict()" in refused({"m": torch.nn.Linear(1, 1)})["m"]


# ---- parts of a snapshot


def test_a_selection_keeps_leaves_and_the_containers_above_them():
    state = {"m": {"w": torch.ones(1), "b": torch.zeros(1)}, "o": [torch.ones(1), torch.ones(2), 3], "c": {"x": 1}}

    back = round_trip(state, select=compile_glob("**/w"))
    some = round_trip(state, select=lambda path: path in {("o", 1), ("c",)})

    assert_same({"m": {"w": torch.ones(1)}}, back)
    assert_same({"o": {1: torch.ones(2)}, "c": {"x": 1}}, some)
    assert round_trip(state, select=lambda path: False) == {}


def test_a_selected_alias_brings_the_array_it_is_of():
    weight = torch.arange(4.0)
    state = {"a": weight, "b": weight, "c": weight[1:], "d": weight.detach()}

    back = round_trip(state, select=lambda path: path != ("a",))

    assert list(back) == ["b", "c", "d"]
    assert back["b"].tolist() == [0, 1, 2, 3]
    assert back["c"].data_ptr() == back["b"].data_ptr() + 4


def test_only_what_is_selected_has_a_destination():
    entries = to_entries(flatten({"a": torch.ones(1), "b": torch.ones(1), "s": torch.eye(2).to_sparse()}))

    assembly = Assembly(entries, select=lambda path: path == ("s",))

    assert [d.entry.path for d in assembly.destinations] == [("s", Attr("indices")), ("s", Attr("values"))]


def test_a_part_of_a_snapshot_is_built_from_its_entries_and_what_they_refer_to():
    weight = torch.arange(3.0)
    leaves = flatten({"a": {"w": weight}, "b": {"w": weight.detach(), "n": 5}})
    part = [leaf for leaf in leaves if leaf.path[:1] == ("b",)]
    needed = {path for leaf in part for path in references(leaf.node)}
    assert needed == {("a", "w")}

    back = assemble([leaf for leaf in leaves if leaf in part or leaf.path in needed], root=("b",))

    assert_same({"w": weight, "n": 5}, back)


def test_a_root_that_is_not_there_is_named():
    with pytest.raises(PathNotFound, match="nowhere"):
        Assembly(to_entries(flatten({"a": 1})), root=("nowhere",))


def test_an_alias_of_nothing_or_of_itself_is_malformed():
    entry = Entry((), [nodes.ALIAS, True, []], None, ())
    with pytest.raises(Malformed, match="part of itself"):
        Assembly([entry]).build()
    with pytest.raises(Malformed, match="not there"):
        Assembly([Entry((), [nodes.ALIAS, True, ["x"]], None, ())])


def test_a_path_that_occurs_twice_is_malformed():
    entry = Entry((), [nodes.DICT], None, ())
    with pytest.raises(Malformed, match="twice"):
        Assembly([entry, entry])


# ---- comparison


def test_a_comparison_names_what_is_missing_unexpected_and_of_another_shape():
    saved = {"same": torch.ones(2), "gone": torch.ones(1), "shape": torch.ones(2), "kind": 5, "n": 1}
    live = {"same": torch.zeros(2), "new": torch.ones(1), "shape": torch.ones(3), "kind": torch.ones(1), "n": 2}

    missing, unexpected, mismatched = compare(to_entries(flatten(saved)), live)

    assert missing == ["new"] and unexpected == ["gone"]
    assert mismatched == [
        "shape: float32[2] in the snapshot, float32[3] in the live state",
        "kind: no array in the snapshot, float32[1] in the live state",
    ]


def test_aliases_and_views_compare_by_what_they_show():
    weight = torch.ones(3, 4)
    saved = [weight, weight.detach(), weight[1:], torch.ones(1, 3).expand(2, 3), torch.eye(2).to_sparse()]
    live = [torch.ones(3, 4), torch.ones(3, 4), torch.ones(2, 4), torch.ones(2, 3), torch.zeros(2, 2).to_sparse()]

    assert compare(to_entries(flatten(saved)), live) == ([], [], [])
    assert compare(to_entries(flatten(live)), saved) == ([], [], [])


def test_a_live_value_that_could_not_be_stored_counts_as_there():
    assert compare(to_entries(flatten({"f": 1, "t": torch.ones(1)})), {"f": print, "t": torch.ones(1)}).unexpected == []


def test_a_fresh_optimizer_lacks_what_a_used_one_has():
    parameter = torch.nn.Parameter(torch.ones(2))
    used, fresh = torch.optim.Adam([parameter]), torch.optim.Adam([parameter])
    parameter.grad = torch.ones(2)
    used.step()

    found = compare(to_entries(flatten(used.state_dict())), fresh.state_dict())

    assert found.unexpected == ["state/0/step", "state/0/exp_avg", "state/0/exp_avg_sq"]
    assert found.missing == [] and found.mismatched == []


def test_the_shown_spec_is_what_the_user_sees():
    weight = torch.ones(3, 4)
    leaves = {leaf.path: leaf for leaf in flatten([weight, weight[:2], weight, torch.ones(1, 2).expand(5, 2), 7])}
    shown = [shown_spec(leaf, leaves.get) for path, leaf in leaves.items() if len(path) == 1]

    assert shown == [
        Spec("float32", (3, 4)),
        Spec("float32", (2, 4)),
        Spec("float32", (3, 4)),
        Spec("float32", (5, 2)),
        None,
    ]
