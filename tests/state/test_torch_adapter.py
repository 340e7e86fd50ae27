"""Tensors: that they come back as they were, that nothing happens to live ones, and what is refused."""

import sys
import tracemalloc
import warnings
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from chainstore.errors import ChainError, Malformed, Unsupported, UnsupportedState
from chainstore.model.paths import Attr
from chainstore.model.spec import Spec
from chainstore.model.tree import Entry
from chainstore.state import Assembly, flatten, register, torch_adapter
from chainstore.state.registry import REGISTRY
from chainstore.state.torch_device import DeviceSource
from chainstore.testing.round_trip import assemble, round_trip, stored_bytes, to_entries
from chainstore.testing.same import bits_of
from chainstore.testing.strategies import nodes
from chainstore.testing.tensors import (
    assert_same,
    composite_tensors,
    dense_dtypes,
    dense_tensors,
    related_tensors,
    tensors,
)

warnings.filterwarnings("ignore", category=UserWarning)
OFTEN = settings(deadline=None, max_examples=200, suppress_health_check=list(HealthCheck))
RARELY = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))


def only_leaf(tensor):
    (leaf,) = flatten(tensor)
    return leaf


def why_refused(state):
    with pytest.raises(UnsupportedState) as caught:
        flatten(state)
    return caught.value.paths


# ---- coming back as they were


@OFTEN
@given(tensors(), st.sampled_from([1, 24, 1 << 20]))
def test_every_tensor_comes_back_as_it_was(tensor, target):
    assert_same([tensor], round_trip([tensor], target))


@RARELY
@given(related_tensors())
def test_tensors_come_back_sharing_memory_as_they_did(state):
    assert_same(state, round_trip(state, target=12))


@pytest.mark.parametrize("dtype", dense_dtypes(), ids=str)
def test_every_dtype_keeps_its_bits(dtype):
    tensor = torch.empty((3, 5), dtype=dtype)
    tensor.untyped_storage().copy_(torch.arange(tensor.untyped_storage().nbytes(), dtype=torch.uint8).untyped_storage())
    if dtype is torch.bool:
        tensor = torch.tensor([[True, False, True]])

    assert_same([tensor], round_trip([tensor]))


def test_tied_weights_of_a_state_dict_come_back_tied():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    state = model.state_dict()
    assert state["0.weight"] is not state["1.weight"]

    back = round_trip(state)

    back["0.weight"][0, 0] = 99
    assert back["1.weight"][0, 0] == 99
    assert sum(leaf.source.nbytes for leaf in flatten(state) if leaf.spec) == (9 + 3 + 3) * 4


def test_the_metadata_of_a_state_dict_survives():
    state = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)).state_dict()

    back = round_trip({"model": state})["model"]

    assert type(back) is OrderedDict
    assert back._metadata == state._metadata
    assert type(back._metadata) is OrderedDict


def test_one_object_in_two_places_comes_back_as_one_object():
    tensor, generator = torch.ones(3), torch.Generator()

    a, b, c, d = round_trip([tensor, tensor, generator, generator])

    assert a is b
    assert c is d


def test_a_parameter_and_its_data_come_back_on_one_memory_as_what_they_were():
    weight = nn.Parameter(torch.ones(3))

    parameter, data = round_trip([weight, weight.data])

    assert type(parameter) is nn.Parameter and parameter.requires_grad
    assert type(data) is torch.Tensor and not data.requires_grad
    assert parameter.data_ptr() == data.data_ptr()


def test_an_expanded_tensor_is_stored_once():
    leaf = only_leaf(torch.ones(1, 4).expand(1000, 4))

    assert leaf.spec == Spec("float32", (1, 4))
    assert leaf.source.nbytes == 16


def test_only_the_bytes_that_views_show_are_stored():
    buffer = torch.full((100,), 7, dtype=torch.uint8)
    leaves = flatten([buffer[10:14], buffer[12:20:2], buffer[90:]])

    storage = next(leaf for leaf in leaves if leaf.path == (0, Attr("storage")))
    assert stored_bytes(storage) == bytes([7, 7, 7, 7, 7, 0, 7, 0, 7])
    assert leaves[-1].source.nbytes == 10


def test_parts_of_a_buffer_that_do_not_overlap_are_stored_apart():
    matrix = torch.arange(1000.0).reshape(10, 100)
    leaves = flatten([matrix[:, 0], matrix[:, 1], matrix[5, 50:]])

    assert [leaf.source.nbytes for leaf in leaves[1:]] == [40, 40, 200]


def test_a_flat_buffer_and_its_slices_are_stored_without_a_copy():
    flat = torch.arange(100.0)
    leaves = flatten([flat, flat[:50], flat[50:]])

    storage = next(leaf for leaf in leaves if leaf.source is not None)
    view = storage.source.read(0, 400)
    flat[3] = -1.0
    assert torch.frombuffer(bytearray(view), dtype=torch.float32)[3] == -1.0


def test_a_tensor_in_the_middle_of_a_graph_comes_back_as_a_leaf_that_requires_grad():
    middle = torch.ones(2, requires_grad=True) * 2

    back = round_trip(middle)

    assert back.requires_grad and back.is_leaf
    assert back.tolist() == [2, 2]


# ---- live tensors


LIVE = [
    torch.arange(6.0),
    torch.tensor(3.0),
    torch.arange(6.0, dtype=torch.bfloat16).reshape(2, 3).t(),
    torch.ones(4).to(torch.float8_e4m3fn),
    torch.tensor([True, False]),
    torch.ones(3, dtype=torch.complex64),
    torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
    torch.arange(6.0)[2:],
    nn.Parameter(torch.ones(3)),
    torch.ones(3, requires_grad=True),
]


@pytest.mark.parametrize("tensor", LIVE, ids=lambda t: f"{t.dtype}{list(t.shape)}")
def test_dense_tensors_are_read_without_a_copy(tensor):
    source = only_leaf(tensor).source

    view = source.read(0, source.nbytes)

    with torch.no_grad():
        tensor.fill_(0)
    assert bytes(view) == bytes(source.nbytes)
    assert view.format == "B" and view.c_contiguous


def test_walking_and_reading_changes_nothing():
    weight = nn.Parameter(torch.ones(3))
    (weight * 2).sum().backward()
    grad, version, rng = weight.grad, weight._version, torch.get_rng_state()

    for leaf in flatten({"w": weight, "d": weight.detach(), "v": weight.detach()[1:]}):
        stored_bytes(leaf)

    assert weight.grad is grad and weight._version == version
    assert torch.equal(torch.get_rng_state(), rng)


def test_a_storage_that_was_read_can_still_be_resized():
    tensor = torch.ones(3)
    stored_bytes(only_leaf(tensor))

    assert tensor.resize_(100).numel() == 100


def test_a_tensor_that_came_back_can_be_resized():
    assert round_trip(torch.ones(3)).resize_(100).numel() == 100


def test_tensors_are_read_under_inference_mode_and_made_there_too():
    with torch.inference_mode():
        tensor = torch.ones(2, 3)[:, 1:]
        back = round_trip([tensor, torch.ones(2)])
    assert_same([tensor.clone(), torch.ones(2)], [back[0].clone(), back[1].clone()])
    assert_same(tensor, round_trip(tensor))


def test_a_default_device_does_not_matter():
    with torch.device("meta"):
        back = round_trip([torch.ones(3, device="cpu"), torch.ones(4, 4, device="cpu")[:, 1:]])
    assert back[0].tolist() == [1, 1, 1] and back[1].device.type == "cpu"


def test_a_range_of_a_strided_tensor_copies_only_its_rows():
    tensor = torch.zeros(1024, 2048)[:, ::2]
    source = only_leaf(tensor).source
    tracemalloc.start()

    part = source.read(1000 * 4, 3000 * 4)

    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()
    assert part.nbytes == 8000


@pytest.mark.parametrize(
    "tensor", [torch.arange(6000.0).reshape(10, 20, 30)[:, ::2, 1:], torch.randn(99, 7, dtype=torch.complex64).conj()]
)
def test_ranges_read_in_parallel_give_the_whole(tensor):
    source = only_leaf(tensor).source
    whole = bytes(source.read(0, source.nbytes))
    cuts = [(start, min(start + 80, source.nbytes)) for start in range(0, source.nbytes, 80)]

    with ThreadPoolExecutor(4) as pool:
        parts = pool.map(lambda cut: bytes(source.read(*cut)), cuts)

    assert b"".join(parts) == whole
    assert whole == tensor.resolve_conj().contiguous().numpy().tobytes()


# ---- into live memory


def test_a_live_model_is_filled_in_place():
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    leaves, state = flatten(other.state_dict()), model.state_dict()
    assembly = Assembly(to_entries(leaves), into=state)

    assert all(d.live for d in assembly.destinations if d.entry.spec is not None)
    back = assemble(leaves, into=state)

    assert_same(model.state_dict(), other.state_dict())
    assert back["weight"] is state["weight"]


def test_memory_that_fits_only_by_value_is_filled_by_a_copy():
    saved = torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)
    live = torch.zeros(1, 2, 3, 4)

    back = round_trip({"x": saved}, into={"x": live})

    assert back["x"] is live
    assert torch.equal(live, saved) and live.is_contiguous()


def test_a_live_array_of_another_dtype_or_shape_is_left_alone():
    live = {"a": torch.zeros(3), "b": torch.zeros(2), "c": 5, "d": torch.zeros(1, 3).expand(2, 3)}
    saved = {"a": torch.ones(3).double(), "b": torch.ones(3), "c": torch.ones(1), "d": torch.ones(2, 3)}

    assert_same(saved, round_trip(saved, into=live))
    assert not live["a"].any() and not live["b"].any() and not live["d"].any()


def test_a_storage_that_was_freed_is_refused_and_never_written_to():
    freed = torch.ones(3)
    freed.untyped_storage().resize_(0)

    assert "freed" in why_refused({"x": freed})["x"]
    back = round_trip({"x": torch.ones(3)}, into={"x": freed})
    assert back["x"] is not freed and back["x"].tolist() == [1, 1, 1]


def test_a_version_counter_says_that_a_live_tensor_was_written():
    live = torch.zeros(3)
    version = live._version

    round_trip([torch.ones(3)], into=[live])

    assert live._version > version


def test_a_snapshot_of_tied_weights_fills_weights_that_are_not():
    weight, live = torch.ones(3), [torch.zeros(3), torch.zeros(3), torch.zeros(2)]

    back = round_trip([weight, weight.detach(), weight[1:]], into=live)

    assert all(x is y for x, y in zip(back, live, strict=True))
    assert [x.tolist() for x in live] == [[1, 1, 1], [1, 1, 1], [1, 1]]


def test_live_weights_that_are_tied_get_the_last_value_as_load_state_dict_would_give():
    weight = torch.zeros(3)
    live = [weight, weight.detach()]

    back = round_trip([torch.ones(3), torch.full((3,), 2.0)], into=live)

    assert weight.tolist() == [2, 2, 2]
    assert back[0] is live[0] and back[1] is live[1]


@RARELY
@given(dense_tensors(), dense_tensors())
def test_into_never_gives_anything_else_than_the_snapshot(saved, live):
    back = round_trip({"x": saved}, into={"x": live})["x"]

    if back is live:
        assert (back.dtype, back.shape) == (saved.dtype, saved.shape)
        assert bits_of(back) == bits_of(saved)
    else:
        assert_same(saved, back)


# ---- what is refused


class Halved(torch.Tensor):
    """A subclass that keeps its data in another tensor, as quantizing libraries do."""

    @staticmethod
    def __new__(cls, inner, factor):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=torch.float32)

    def __init__(self, inner, factor):
        self.inner, self.factor = inner, factor

    def __tensor_flatten__(self):
        return ["inner"], {"factor": self.factor}

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Halved(inner["inner"], context["factor"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return Halved(args[0].inner, args[0].factor)
        raise NotImplementedError(str(func))


class Opaque(torch.Tensor):
    """A subclass that does not take itself apart."""


def test_a_subclass_that_takes_itself_apart_comes_back():
    tensor = Halved(torch.arange(3), 0.5)

    back = round_trip({"x": tensor, "p": nn.Parameter(tensor)})

    assert type(back["x"]) is Halved and back["x"].factor == 0.5
    assert back["x"].inner.tolist() == [0, 1, 2]
    assert isinstance(back["p"], nn.Parameter) and back["p"].requires_grad


def test_a_subclass_of_a_function_must_be_registered():
    class Local(Halved):
        pass

    tensor = Local(torch.arange(3), 0.5)
    assert "cs.register" in why_refused({"x": tensor})["x"]
    register(Local)
    Local.__tensor_unflatten__ = staticmethod(lambda inner, context, size, stride: Local(inner["inner"], **context))

    assert type(round_trip(tensor)) is Local


def test_a_subclass_that_is_not_loaded_is_never_imported():
    leaves = flatten(Halved(torch.arange(3), 0.5))
    node = [*leaves[0].node[:3], "wsgiref.simple_server:WSGIServer", *leaves[0].node[4:]]
    entries = to_entries(leaves)
    entries[0] = Entry((), node, None, ())
    sys.modules.pop("wsgiref.simple_server", None)
    assembly = Assembly(entries)
    for destination in assembly.destinations:
        destination.buffer[:] = next(stored_bytes(leaf) for leaf in leaves if leaf.path == destination.entry.path)

    with pytest.raises(Unsupported, match="no such class"):
        assembly.build()
    assert "wsgiref.simple_server" not in sys.modules


def test_a_registered_type_may_hold_tensors():
    class Ema:
        def __init__(self, weights, decay):
            self.weights, self.decay = weights, decay

    register(Ema, lambda ema: {"weights": ema.weights, "decay": ema.decay}, lambda state: Ema(**state), version=3)
    weights = [torch.ones(3), torch.zeros(2)]

    back = round_trip({"ema": Ema(weights, 0.9), "w": weights[0]})

    assert back["ema"].decay == 0.9 and back["ema"].weights[1].tolist() == [0, 0]
    assert back["ema"].weights[0] is back["w"]
    assert REGISTRY.by_type(Ema).version == 3


def test_everything_that_cannot_be_stored_is_named_at_once():
    refused = why_refused(
        {
            "meta": torch.empty(3, device="meta"),
            "opaque": [torch.ones(1), torch.ones(2).as_subclass(Opaque)],
            "storage": torch.ones(2).untyped_storage(),
            "lazy": nn.parameter.UninitializedParameter(),
            "mkldnn": torch.ones(2, 2).to_mkldnn(),
            "model": nn.Linear(1, 1),
            "fine": torch.ones(1),
        }
    )

    assert set(refused) == {"meta", "opaque/1", "storage", "lazy", "mkldnn", "model"}
    assert "Opaque" in refused["opaque/1"]


def test_fake_and_functional_tensors_are_refused():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(3)
    assert why_refused([fake])
    assert why_refused([torch._to_functional_tensor(torch.ones(2))])


def test_a_tensor_under_vmap_is_refused():
    seen = []
    torch.vmap(lambda x: seen.append(why_refused([x])) or x)(torch.ones(2, 3))
    assert seen[0]


# ---- nodes from a hostile store


@settings(deadline=None, max_examples=400, suppress_health_check=list(HealthCheck))
@given(st.data(), dense_tensors() | composite_tensors() | related_tensors())
def test_a_changed_node_gives_an_error_of_ours_or_a_state(data, state):
    leaves = flatten({"x": state})
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


def test_bytes_that_do_not_make_the_shape_are_malformed():
    (entry,) = to_entries(flatten(torch.ones(3)))

    with pytest.raises(Malformed, match="12 bytes instead of 16"):
        Assembly([Entry((), entry.node, Spec("float32", (4,)), entry.extents)])


def test_sparse_indices_out_of_range_are_malformed():
    leaves = flatten(torch.eye(3).to_sparse())
    assembly = Assembly(to_entries(leaves))
    for destination in assembly.destinations:
        destination.buffer[:] = b"\x7f" * destination.buffer.nbytes

    with pytest.raises(Malformed):
        assembly.build()


# ---- cost


# ---- tensors that are copied to the host (the code for other devices, on this one)


@RARELY
@given(dense_tensors(), st.sampled_from([1, 24, 1 << 20]))
def test_bytes_copied_from_a_device_are_those_read_in_place(tensor, target):
    leaf = only_leaf(tensor)
    facts = torch_adapter._facts(tensor.dtype, tuple(tensor.shape), tensor.stride())
    source = DeviceSource(tensor.detach(), facts.spec.shape, facts.nbytes, facts.packed)

    assert stored_bytes(leaf._replace(source=source), target) == stored_bytes(leaf, target)


def test_a_storage_gathered_on_a_device_is_that_of_the_host():
    base = torch.arange(40, dtype=torch.int16)
    views = [base[3:9], base[5:20:3], base[4:8].view(torch.uint8)]
    described = [torch_adapter.ADAPTER.describe(view) for view in views]
    start, nbytes = described[0].region.address, 40
    gathered = [
        dense._replace(source=DeviceSource(view, tuple(view.shape), dense.source.nbytes, True))
        for dense, view in zip(described, views, strict=True)
    ]

    on_host = torch_adapter.ADAPTER.gather(described, start, nbytes)
    on_device = torch_adapter.ADAPTER.gather(gathered, start, nbytes)

    assert bytes(on_device.read(0, nbytes)) == bytes(on_host.read(0, nbytes))
    assert bytes(on_device.read(6, 10)) == bytes(on_host.read(6, 10))
