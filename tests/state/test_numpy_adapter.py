"""Numpy arrays: that they come back as they were, and what is refused."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chainstore.errors import ChainError, UnsupportedState
from chainstore.model.spec import Spec
from chainstore.model.tree import Entry
from chainstore.state import Assembly, flatten
from chainstore.testing.round_trip import round_trip, stored_bytes, to_entries
from chainstore.testing.strategies import nodes
from chainstore.testing.tensors import arrays, assert_same

OFTEN = settings(deadline=None, max_examples=200, suppress_health_check=list(HealthCheck))


@OFTEN
@given(arrays(), st.sampled_from([1, 24, 1 << 20]))
def test_every_array_comes_back_as_it_was(array, target):
    assert_same([array], round_trip([array], target))


def test_arrays_that_share_memory_come_back_sharing_it():
    base = np.arange(12.0).reshape(3, 4)
    frozen = base[1:]
    frozen.flags.writeable = False
    repeated = np.broadcast_to(base, (2, 3, 4))
    state = [base, base, base.view(), base.T, frozen, base[:, ::2], base.view(np.int64), repeated]

    back = round_trip(state, target=8)

    assert_same(state, back)
    back[0][1, 1] = 99
    assert back[3][1, 1] == back[4][0, 1] == back[7][1, 1, 1] == 99


def test_a_read_only_view_does_not_make_its_writable_twin_read_only():
    array = np.arange(3)
    frozen = array.view()
    frozen.flags.writeable = False

    first, second = round_trip([frozen, array])

    second[0] = 7
    assert first[0] == 7 and not first.flags.writeable


def test_parts_that_do_not_overlap_are_stored_apart():
    matrix = np.zeros((100, 100))

    assert [leaf.source.nbytes for leaf in flatten([matrix[:, 0], matrix[:, 1]])[1:]] == [800, 800]


def test_dtypes_that_only_numpy_has_are_raw_items():
    (leaf,) = flatten(np.array(["ab", "cde"]))

    assert leaf.spec == Spec("raw12", (2,))
    assert "abc" not in str(leaf.node)


def test_dense_arrays_are_read_without_a_copy():
    array = np.arange(6.0).reshape(2, 3).T
    source = flatten(array)[0].source
    view = source.read(0, 48)

    array[...] = 0

    assert bytes(view) == bytes(48)


def test_what_is_more_or_less_than_memory_is_refused_by_path():
    state = {
        "objects": np.array([None, {}]),
        "masked": np.ma.masked_array([1, 2], [True, False]),
        "matrix": np.matrix([[1]]),
        "record": np.zeros(1, [("x", "O")]),
        "fine": np.zeros(3),
    }
    with pytest.raises(UnsupportedState) as caught:
        flatten(state)

    assert set(caught.value.paths) == {"objects", "masked", "matrix", "record"}
    assert "tolist" in caught.value.paths["objects"]


@pytest.mark.skipif(not hasattr(np, "dtypes") or not hasattr(np.dtypes, "StringDType"), reason="numpy 2 only")
def test_strings_of_any_length_are_refused():
    with pytest.raises(UnsupportedState):
        flatten(np.array(["a", "b" * 99], dtype=np.dtypes.StringDType()))


def test_a_live_array_is_filled_in_place():
    live = {"a": np.zeros((2, 3)), "f": np.zeros((2, 3)), "frozen": np.zeros(2), "other": np.zeros(2, np.int32)}
    live["frozen"].flags.writeable = False
    saved = {"a": np.ones((2, 3)), "f": np.asfortranarray(np.ones((2, 3))), "frozen": np.ones(2), "other": np.ones(2)}

    back = round_trip(saved, into=live)

    assert back["a"] is live["a"] and back["f"] is live["f"]
    assert live["a"].all() and live["f"].all()
    assert not live["frozen"].any() and back["frozen"].all()
    assert back["other"].dtype == np.float64


@settings(deadline=None, max_examples=300, suppress_health_check=list(HealthCheck))
@given(st.data(), st.lists(arrays(), min_size=1, max_size=2))
def test_a_changed_node_gives_an_error_of_ours_or_a_state(data, state):
    leaves = flatten([*state, state[0][..., :1] if state[0].ndim else state[0]])
    entries = to_entries(leaves)
    index = data.draw(st.integers(1, len(entries) - 1))
    node = list(entries[index].node)
    place = data.draw(st.integers(0, len(node)))
    node[place : place + 1] = [data.draw(nodes(max_leaves=6) | st.integers(0, 40) | st.lists(st.integers(-9, 99)))]
    entries[index] = Entry(entries[index].path, node, entries[index].spec, entries[index].extents)

    try:
        assembly = Assembly(entries)
        for destination in assembly.destinations:
            leaf = next(leaf for leaf in leaves if leaf.path == destination.entry.path)
            destination.buffer[:] = stored_bytes(leaf)[: destination.buffer.nbytes]
        assembly.build()
    except ChainError:
        pass


def test_a_state_of_arrays_never_imports_torch():
    script = """
import sys, numpy
from chainstore.state import Assembly, flatten
from chainstore.model.tree import Entry
leaves = flatten({"a": numpy.zeros(0), "b": {"c": 1}})
Assembly([Entry(l.path, l.node, l.spec, ()) for l in leaves if l.path != ("b",)]).build()
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_state_of_plain_values_imports_neither_numpy_nor_torch():
    script = """
import sys
from chainstore.state import flatten
flatten({"a": [1, 2.5, {"b": None}]})
assert not {"numpy", "torch"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
