import enum
import os
import random
import struct
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from fractions import Fraction
from pathlib import PurePosixPath, PureWindowsPath
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chainstore.errors import InvalidInput, Malformed, Unsupported, UnsupportedState
from chainstore.model import wire
from chainstore.model.paths import Attr, format_path
from chainstore.state import value_codes as codes
from chainstore.state.registry import Registry
from chainstore.state.values import MAX_DEPTH, REGISTRY, decode_value, encode_value, is_plain_scalar, register
from chainstore.testing.library_values import (
    library_values,
    numpy_dtypes,
    numpy_generators,
    numpy_scalars,
    torch_values,
)
from chainstore.testing.sameness import same_value
from chainstore.testing.strategies import nodes, plain_values, scalars

EMPTY = Registry()


def stored(value, registry=EMPTY):
    """Return what comes back from disk, having gone through bytes."""
    return decode_value(wire.decode(wire.encode(encode_value(value, registry=registry)), strict=True), registry)


def problems_of(value, **options):
    found: dict = {}
    encode_value(value, problems=found, registry=options.pop("registry", EMPTY), **options)
    return {format_path(path): why for path, why in found.items()}


# ---- there and back


@given(plain_values())
def test_a_plain_value_comes_back_the_same(value):
    assert same_value(stored(value), value)


@given(plain_values(also=numpy_scalars() | torch_values()))
def test_values_of_libraries_come_back_within_others(value):
    assert same_value(stored(value), value)


@given(plain_values(), plain_values())
def test_different_values_are_stored_differently(a, b):
    assert (wire.encode(encode_value(a)) == wire.encode(encode_value(b))) == same_value(a, b)


def state_of(generator):
    bits = getattr(generator, "bit_generator", None) or getattr(generator, "_bit_generator", None) or generator
    legacy = generator.get_state(legacy=False) if isinstance(generator, np.random.RandomState) else None
    state = None if isinstance(generator, np.random.SeedSequence) else repr(bits.state)
    seed = generator if isinstance(generator, np.random.SeedSequence) else bits.seed_seq
    return type(generator), type(bits), state, repr(legacy), repr(seed), seed is not None and list(seed.pool)


@given(numpy_generators())
def test_a_random_generator_of_numpy_comes_back_in_its_state(generator):
    back = stored(generator)
    assert state_of(back) == state_of(generator)
    if isinstance(generator, np.random.Generator):
        assert back.integers(1 << 60, size=3).tolist() == generator.integers(1 << 60, size=3).tolist()
        assert back.spawn(1)[0].random() == generator.spawn(1)[0].random()


@given(numpy_dtypes())
def test_a_dtype_comes_back_the_same(dtype):
    back = stored(dtype)
    assert back == dtype
    assert back.type is dtype.type
    assert back.isalignedstruct == dtype.isalignedstruct


def test_every_dtype_of_torch_comes_back():
    dtypes = [value for value in vars(torch).values() if isinstance(value, torch.dtype)]
    assert dtypes
    assert all(stored(dtype) is dtype for dtype in dtypes)


def test_random_goes_on_where_it_was():
    random.seed(5)
    random.gauss(0, 1)
    generator = random.Random(3)
    state, held = stored((random.getstate(), generator))
    expected = [random.random(), generator.random()]
    random.setstate(state)
    assert [random.random(), held.random()] == expected


def test_the_legacy_state_of_numpy_needs_its_array_taken_out():
    assert list(problems_of(np.random.get_state())) == ["1"]


def test_keys_keep_their_types_and_order():
    value = {"b": 1, 1: 2, "1": 3, 2.0: 4, None: 5, (1, True): 6, b"1": 7, frozenset({1}): 8}
    assert same_value(stored(value), value)


def test_nan_payloads_and_negative_zero_survive():
    odd = struct.unpack("<d", bytes.fromhex("0100000000f8ff7f"[:14] + "7f"))[0]
    for value in ([odd, -0.0], [odd, 1], (odd,), {odd: -0.0}):
        assert same_value(stored(value), value)


def test_metadata_of_a_state_dict_survives():
    metadata = torch.nn.Sequential(torch.nn.ReLU()).state_dict()
    back = stored(metadata)
    assert type(back) is OrderedDict
    assert back._metadata == metadata._metadata
    assert type(back._metadata) is OrderedDict


def test_fold_and_zone_of_a_time_survive():
    value = datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Zurich"), fold=1)
    assert stored(value).utcoffset() == value.utcoffset() == timedelta(hours=1)


def test_a_path_of_another_system_comes_back_as_a_pure_one():
    assert same_value(decode_value([codes.PATH, "WindowsPath", "c:\\a"]), PureWindowsPath("c:\\a"))
    assert same_value(stored(PurePosixPath(os.fsdecode(b"/\xff"))), PurePosixPath(os.fsdecode(b"/\xff")))


def test_a_set_is_stored_alike_in_every_process():
    program = (
        "from chainstore.state.values import encode_value; from chainstore.model.wire import encode;"
        "print(encode(encode_value({'a', 'b', 'c', 1, None, (2, 'd')})).hex())"
    )
    runs = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, env={"PYTHONHASHSEED": seed}, check=True)
        for seed in ("1", "2", "3")
    ]
    assert len({run.stdout for run in runs}) == 1


def test_plain_values_need_neither_numpy_nor_torch():
    program = (
        "import sys; from chainstore.state.values import encode_value, decode_value;"
        "decode_value(encode_value({'a': [1, 2.5, {3}]})); assert not {'numpy', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_container_used_twice_comes_back_as_two():
    shared = [1]
    back = stored([shared, shared])
    assert back == [[1], [1]]
    assert back[0] is not back[1]


def test_the_state_of_random_and_long_lists_of_floats_take_few_bytes():
    state = random.getstate()
    node = encode_value(state)
    assert len(wire.encode(node)) < 3300
    losses = [random.random() for _ in range(100_000)]
    encoded = wire.encode(encode_value(losses))
    assert len(encoded) < 8 * len(losses) + 20


# ---- what is refused


class MyDict(dict):
    pass


class MyInt(int):
    pass


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Sequence(np.random.SeedSequence):
    pass


class Zone(tzinfo):
    pass


@dataclass
class Point:
    x: object = 1
    y: object = 2


Pair = namedtuple("Pair", "a b")
METADATA_DTYPE = np.dtype("f4", metadata={"a": 1})

REFUSED = {
    "a subclass of dict": MyDict(),
    "a subclass of int": MyInt(3),
    "an enum": Colour.RED,
    "an int enum": Level.LOW,
    "a named tuple": Pair(1, 2),
    "a dataclass": Point(),
    "a namespace": SimpleNamespace(),
    "a function": len,
    "a lambda": lambda: 0,
    "a class": dict,
    "a numpy class": np.float32,
    "a module": os,
    "an iterator": iter(()),
    "an object": object(),
    "a memoryview": memoryview(b""),
    "a random device": random.SystemRandom(),
    "an array": np.zeros(2),
    "a tensor": torch.zeros(2),
    "a torch generator": torch.Generator(),
    "a factory of code": defaultdict(lambda: 0),
    "a strange time zone": datetime(2024, 1, 1, tzinfo=Zone()),
    "a dtype with metadata": METADATA_DTYPE,
    "a dtype of strings of any length": np.dtypes.StringDType(),
    "a record of objects": np.array([(1, [])], dtype=[("a", "i4"), ("b", "O")])[0],
    "a seed sequence of one's own": np.random.PCG64(Sequence(3)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_come_back_is_refused_by_path_and_type(what):
    value = REFUSED[what]
    found = problems_of({"fine": 1, "list": [2.5, value]}, path=("root",))
    assert list(found) == ["root/list/1"]
    assert type(value).__qualname__ in found["root/list/1"]


def test_every_offending_path_is_named():
    shadowed = OrderedDict(a=1)
    shadowed._metadata = {"v": MyInt(1)}
    value = {
        "a": [MyDict(), 1, MyDict()],
        "b": {Level.LOW: object()},
        "c": {(1, 2): (len,)},
        "d": shadowed,
        "e": slice(1, len),
        "f": deque([os]),
    }
    with pytest.raises(UnsupportedState) as caught:
        encode_value(value, registry=EMPTY)
    paths = list(caught.value.paths)
    assert paths[:2] == ["a/0", "a/2"]
    assert paths[2].startswith("b/@")
    assert paths[3:] == ["c/(1,2)/0", "d/@_metadata/v", "e/@stop", "f/0"]


def test_items_of_sets_and_odd_keys_are_named_too():
    assert len(problems_of({MyInt(1), MyInt(2), 3})) == 2
    assert len(problems_of({Level.LOW: 1, Colour.RED: 2, (Colour.RED,): 3})) == 3


def test_attributes_of_a_counter_are_not_lost_silently():
    counter = Counter("a")
    counter.total_seen = 3
    assert list(problems_of([counter])) == ["0"]


def test_an_attribute_that_would_hide_a_method_is_refused():
    value = OrderedDict()
    value.items = [1]
    assert "hides" in problems_of(value)[""]


def cycles():
    items: list = [1]
    items.append(items)
    mapping: dict = {"a": {}}
    mapping["a"]["b"] = (mapping,)
    shared = OrderedDict()
    shared._metadata = [shared]
    return [(items, "1"), (mapping, "a/b/0"), (shared, "@_metadata/0")]


@pytest.mark.parametrize(("value", "path"), cycles())
def test_what_contains_itself_is_refused_by_path(value, path):
    found = problems_of(value)
    assert list(found) == [path]
    assert "contains itself" in found[path]


def nested(levels, make=lambda inner: [inner], innermost=1.5):
    value = innermost
    for _ in range(levels):
        value = make(value)
    return value


@pytest.mark.parametrize("make", [lambda x: [x], lambda x: {"k": x}, lambda x: (x,), lambda x: slice(x), Point])
def test_containers_nest_as_deep_as_a_state_may(make):
    registry = Registry()
    registry.register(Point, lambda point: point.x, Point)
    for innermost in (1.5, datetime(2024, 1, 1, tzinfo=UTC), np.random.default_rng(1)):
        value = nested(MAX_DEPTH + 1, make, innermost)
        back = stored(value, registry)
        assert type(back) is type(value)
    found = problems_of(nested(MAX_DEPTH + 2, make), registry=registry)
    assert len(found) == 1
    assert all(str(MAX_DEPTH) in why for why in found.values())


def test_the_path_above_counts_towards_the_depth():
    assert problems_of([[1]], path=("a",) * MAX_DEPTH)
    assert not problems_of([1], path=("a",) * MAX_DEPTH)


def test_a_type_that_encodes_to_itself_is_refused():
    registry = Registry()
    registry.register(Point, lambda point: Point(), Point)
    assert len(problems_of(Point(), registry=registry)) == 1
    registry.register(Point, lambda point: point, Point)
    assert "contains itself" in next(iter(problems_of(Point(), registry=registry).values()))


# ---- registered types


def points():
    registry = Registry()
    registry.register(Point, lambda point: {"x": point.x, "y": point.y}, lambda held: Point(**held))
    return registry


def test_a_registered_type_comes_back():
    value = [Point(1.5, Point((), None)), {"p": Point()}]
    assert stored(value, points()) == value


def test_problems_within_a_registered_type_are_named():
    assert list(problems_of([Point(len, 1)], registry=points())) == ["0/@encoded/x"]


def test_what_nobody_registered_is_not_loaded():
    node = encode_value(Point(), registry=points())
    with pytest.raises(Unsupported, match=rf"{Point.__module__}\.Point.*version 1"):
        decode_value(node, EMPTY)


def test_a_newer_version_stores_and_an_older_one_still_loads():
    registry = points()
    old = encode_value(Point(3, 4), registry=registry)
    registry.register(Point, lambda point: (point.x, point.y), lambda held: Point(*held), version=2)
    registry.register(Point, lambda point: {"x": point.x, "y": point.y}, lambda held: Point(**held), version=1)
    new = encode_value(Point(3, 4), registry=registry)
    assert new[2] == 2
    assert decode_value(old, registry) == decode_value(new, registry) == Point(3, 4)
    with pytest.raises(Unsupported, match=r"version 2.*registered: version 1"):
        decode_value(new, points())


def test_a_name_can_be_given_that_survives_a_move():
    registry = Registry()
    registry.register(Point, lambda point: point.x, Point, name="geometry.Point")
    assert encode_value(Point(), registry=registry)[1] == "geometry.Point"


def test_registering_again_replaces():
    registry = points()
    registry.register(Point, lambda point: None, lambda held: Point("again"))
    assert stored(Point(), registry) == Point("again")


def test_a_subclass_of_a_registered_type_is_not_registered():
    class Special(Point):
        pass

    assert list(problems_of([Special()], registry=points())) == ["0"]


def test_a_tensor_subclass_is_no_plain_value():
    registry = Registry()
    registry.register(torch.nn.Parameter)
    assert list(problems_of([torch.nn.Parameter(torch.zeros(1))], registry=registry)) == ["0"]
    name = registry.by_type(torch.nn.Parameter).name
    with pytest.raises(Malformed):
        decode_value([codes.REGISTERED, name, 1, None], registry)


@pytest.mark.parametrize(
    "arguments", [(dict, list, dict), (5, list, dict), (Point, list), (Point, 1, 2), (Point, list, dict, 0), (str,)]
)
def test_a_registration_that_makes_no_sense_is_refused(arguments):
    with pytest.raises(InvalidInput):
        register(*arguments)


def test_the_registry_of_the_process_is_the_default():
    class Local:
        pass

    register(Local, lambda local: 1, lambda held: Local())
    assert type(decode_value(encode_value(Local()))) is Local
    assert REGISTRY.by_type(Local) is not None


@given(scalars())
def test_scalars_are_told_from_containers(value):
    assert is_plain_scalar(value)
    assert not is_plain_scalar([value])


# ---- nodes that are anything


@given(nodes())
def test_any_node_is_a_value_or_malformed(node):
    try:
        value = decode_value(node, EMPTY)
    except (Malformed, Unsupported):
        return
    assert not problems_of(value)


@given(plain_values(also=library_values()), st.data())
def test_a_damaged_node_is_a_value_or_malformed(value, data):
    node = wire.decode(wire.encode(encode_value(value)))
    while type(node) is list and node:
        place = data.draw(st.integers(0, len(node) - 1))
        if type(node[place]) is list and data.draw(st.booleans()):
            node = node[place]
            continue
        node[place] = data.draw(nodes(max_leaves=4))
        break
    with suppress(Malformed, Unsupported):
        decode_value(node, EMPTY)


HOSTILE = {
    "nothing": [],
    "no code": ["a"],
    "a bool as code": [True, b"12345678"],
    "an unknown code": [99],
    "the code of an attribute": [3, "a"],
    "a float in a node": 1.5,
    "a float of 7 bytes": [codes.FLOAT, b"1234567"],
    "floats of 9 bytes": [codes.FLOAT_LIST, b"123456789"],
    "a dict with a key twice": [codes.DICT, 1, 2, 1, 3],
    "a dict with equal keys of two types": [codes.DICT, 1, 2, True, 3],
    "a key without value": [codes.DICT, 1],
    "a key that cannot be one": [codes.DICT, [codes.LIST], 1],
    "a set with an item twice": [codes.SET, 1, True],
    "a set of lists": [codes.SET, [codes.LIST]],
    "a deque that would lose items": [codes.DEQUE, 1, 1, 2],
    "a deque of unthinkable length": [codes.DEQUE, 1 << 64],
    "a defaultdict of code": [codes.DEFAULT_DICT, "eval"],
    "an attribute that hides a method": [codes.ORDERED_DICT, [codes.DICT, "items", 1]],
    "an attribute that is a class": [codes.ORDERED_DICT, [codes.DICT, "__class__", 1]],
    "a range of no step": [codes.RANGE, 0, 1, 0],
    "a month too many": [codes.DATE, 2024, 13, 1],
    "a time difference not in normal form": [codes.TIMEDELTA, 0, 86_400, 0],
    "an endless time difference": [codes.TIMEDELTA, 10**30, 0, 0],
    "an offset of two days": [codes.TIMEZONE, 2, 0, 0, None],
    "a file as time zone": [codes.ZONE_INFO, "../../../etc/passwd"],
    "an absolute file as time zone": [codes.ZONE_INFO, "/etc/passwd"],
    "a decimal in another form": [codes.DECIMAL, "1_0"],
    "no decimal": [codes.DECIMAL, "x"],
    "a fraction by zero": [codes.FRACTION, 1, 0],
    "a fraction not in lowest terms": [codes.FRACTION, 2, 4],
    "a uuid of 3 bytes": [codes.UUID, b"123"],
    "a path of no class": [codes.PATH, "Path", "a"],
    "a path in another form": [codes.PATH, "PurePosixPath", "a//b"],
    "text that needs no care": [codes.TEXT, b"abc"],
    "a random state past its end": [codes.RANDOM, 3, None, *[1] * 624, 625],
    "a random state of wide words": [codes.RANDOM, 3, None, *[1 << 32] * 624, 0],
    "a twister past its end": [codes.BIT_GENERATOR, "MT19937", None, *[1] * 624, 625],
    "a Philox past its end": [codes.BIT_GENERATOR, "Philox", None, *[1] * 10, 5, 0, 0],
    "an even increment": [codes.BIT_GENERATOR, "PCG64", None, 1, 2, 0, 0],
    "a bit generator by any name": [codes.BIT_GENERATOR, "os.system", None, 1],
    "a seed pool that fills the memory": [codes.SEED_SEQUENCE, 1, 1 << 40, 0],
    "a numpy record of pointers": [codes.NUMPY_SCALAR, ["record", 8, False, ["a", None, 0, "|O"]], b"12345678"],
    "a numpy pointer": [codes.NUMPY_SCALAR, "|O", b"12345678"],
    "a numpy scalar cut short": [codes.NUMPY_SCALAR, "<f8", b"1234"],
    "a numpy text longer than memory": [codes.NUMPY_SCALAR, "<U999999999", b"1234"],
    "a numpy dtype that is code": [codes.NUMPY_DTYPE, "f4,f4"],
    "a numpy dtype of negative size": [codes.NUMPY_DTYPE, ["sub", "<f4", -1]],
    "a numpy dtype larger than memory": [codes.NUMPY_DTYPE, ["sub", "<f8", 1 << 40, 1 << 40]],
    "a numpy field outside its record": [codes.NUMPY_DTYPE, ["record", 4, False, ["a", None, 2, "<f4"]]],
    "a torch size of text": [codes.TORCH_SIZE, "1"],
    "a torch name with a dot": [codes.TORCH_DTYPE, "os.system"],
    "a torch device with a number in it": [codes.TORCH_DEVICE, "cuda:1", None],
    "a torch device of negative index": [codes.TORCH_DEVICE, "cuda", -1],
    "a slice of two parts": [codes.SLICE, 1, 2],
    "a registered type without version": [codes.REGISTERED, "a"],
    "lists without end": nested(5000, lambda inner: [codes.LIST, inner], 1),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_node_is_malformed(what):
    with pytest.raises(Malformed):
        decode_value(HOSTILE[what], EMPTY)


UNKNOWN_HERE = {
    "a time zone": [codes.ZONE_INFO, "Mars/Olympus_Mons"],
    "a folder of time zones": [codes.ZONE_INFO, "America"],
    "a torch dtype": [codes.TORCH_DTYPE, "float3"],
    "a torch function": [codes.TORCH_DTYPE, "load"],
    "a torch device": [codes.TORCH_DEVICE, "abacus", None],
    "a long double of another processor": [codes.NUMPY_DTYPE, "<g999"],
    "a registered type": [codes.REGISTERED, "os.system", 1, "ls"],
}


@pytest.mark.parametrize("what", UNKNOWN_HERE)
def test_what_this_machine_does_not_know_is_unsupported(what):
    with pytest.raises(Unsupported):
        decode_value(UNKNOWN_HERE[what], EMPTY)


def test_a_problem_path_uses_the_keys_themselves():
    found: dict = {}
    encode_value({"a": {(1, None): [len]}}, problems=found, registry=EMPTY)
    assert list(found) == [("a", (1, None), 0)]
    found.clear()
    encode_value({1j: len}, problems=found, registry=EMPTY)
    assert list(found) == [(Attr("key 1j"),)]


def test_fractions_of_any_size_come_back():
    value = Fraction(3**500, 2**800)
    assert same_value(stored(value), value)
