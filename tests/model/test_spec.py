import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chainstore.errors import Malformed, Unsupported
from chainstore.model.spec import DTYPES, Spec, find_dtype, spec_from_node, spec_node
from chainstore.model.wire import decode, encode
from chainstore.testing.strategies import nodes

TORCH_DTYPES = sorted({v for v in vars(torch).values() if isinstance(v, torch.dtype)}, key=str)

specs = st.builds(
    Spec,
    st.sampled_from(sorted(DTYPES)) | st.integers(1, 999).map("raw{}".format),
    st.lists(st.integers(0, 1000), max_size=4).map(tuple),
)


def kind_of(dtype):
    name = str(dtype).removeprefix("torch.")
    if name.startswith("bits"):
        return "bits"
    if dtype.is_complex:
        return "complex"
    if dtype.is_floating_point:
        return "float"
    if dtype is torch.bool:
        return "bool"
    return "uint" if "uint" in name else "int"


def test_the_table_holds_the_dtypes_of_torch_and_no_others():
    assert {str(dtype).removeprefix("torch.") for dtype in TORCH_DTYPES} == set(DTYPES)


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
def test_the_table_says_of_a_dtype_what_torch_says(dtype):
    ours = DTYPES[str(dtype).removeprefix("torch.")]

    assert (ours.itemsize, ours.kind) == (dtype.itemsize, kind_of(dtype))


@pytest.mark.parametrize("name", sorted(set(DTYPES) & set(np.sctypeDict)))
def test_dtypes_of_both_libraries_have_one_size(name):
    assert DTYPES[name].itemsize == np.dtype(name).itemsize


def test_a_spec_counts_items_and_bytes():
    spec = Spec("complex64", (3, 4))

    assert (spec.itemsize, spec.count, spec.nbytes, spec.kind) == (8, 12, 96, "complex")
    assert Spec("float32", ()).nbytes == 4
    assert Spec("float32", (0, 7)).nbytes == 0


def test_raw_items_have_the_size_in_their_name():
    assert find_dtype("raw20").itemsize == 20
    assert Spec("raw20", (2,)).kind == "bits"


@pytest.mark.parametrize("name", ["float128", "raw0", "raw", "raw-1", "raw01", "rawx", ""])
def test_an_unknown_dtype_is_refused_by_name(name):
    with pytest.raises(Unsupported):
        find_dtype(name)


@given(specs)
def test_a_spec_survives_its_node(spec):
    assert spec_from_node(decode(encode(spec_node(spec)))) == spec


@given(nodes() | st.lists(st.integers() | st.booleans() | st.just("float32"), max_size=5).map(lambda n: ["int8", *n]))
def test_a_node_is_a_spec_or_an_error_of_ours(node):
    try:
        spec = spec_from_node(node)
    except (Malformed, Unsupported):
        return
    assert spec_node(spec) == node


@pytest.mark.parametrize(
    "node",
    [
        ["float32", -1],
        ["float32", True],
        ["float32", 1 << 61],
        ["float32", 0, 1 << 61],
        ["float32", 1 << 40, 1 << 40],
        ["float32", *[1] * 65],
        [],
        None,
    ],
)
def test_a_shape_that_no_memory_could_hold_is_malformed(node):
    with pytest.raises(Malformed):
        spec_from_node(node)
