"""`repo.diff`: what it says of two snapshots, next to what torch computes, and what it reads for that."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import chainstore as cs
from chainstore.errors import IdMismatch, InvalidInput, RevisionNotFound
from chainstore.ids import ObjectId
from chainstore.model.spec import find_dtype
from chainstore.ops.diff import Meter
from chainstore.ops.differences import Diff, TensorDiff
from chainstore.ops.pairing import NUMERIC
from chainstore.ops.sums import Sums

DTYPES = sorted(NUMERIC)


@pytest.fixture
def repo(tmp_path: Path):
    with cs.init(tmp_path / "repo", encrypt=False) as repo:
        yield repo


def differ(repo: cs.Repository, a: object, b: object, **how: object) -> Diff:
    """Commit two states and return what differs between them."""
    old = repo.commit(a)
    return repo.diff(old, repo.commit(b), **how)


def flip(repo: cs.Repository, id: ObjectId) -> None:
    """Flip a bit in the middle of an object's record in its pack."""
    with repo._db.view() as view:
        place = view.place(id)
        assert place is not None and view.inline(id) is None
        name = view.pack(place.pack).pack.hex()
    file = repo.path / "packs" / name[:2] / name
    data = bytearray(file.read_bytes())
    data[place.offset + place.length // 2] ^= 1
    file.write_bytes(data)


def only(diff: Diff) -> TensorDiff:
    (tensor,) = diff.tensors
    return tensor


def statuses(diff: Diff) -> dict[str, str]:
    return {tensor.path: tensor.status for tensor in diff.tensors}


def random_bits(dtype: str, count: int, seed: int) -> torch.Tensor:
    """Return elements of every bit pattern, NaN and Inf included; of doubles, ordinary ones with some NaN and Inf."""
    generator = torch.Generator().manual_seed(seed)
    kind, itemsize = getattr(torch, dtype), find_dtype(dtype).itemsize
    if dtype == "bool":
        return torch.randint(0, 2, (count,), generator=generator, dtype=torch.uint8).bool()
    if dtype in ("float64", "complex128"):
        made = torch.randn(count, dtype=kind, generator=generator)
        made[::7], made[1::11], made[2::13] = math.nan, math.inf, -math.inf
        return made
    return torch.randint(0, 256, (count * itemsize,), generator=generator, dtype=torch.uint8).view(kind)


def as_double(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype.is_complex:
        parts = torch.view_as_real(tensor) if tensor.dtype != torch.complex32 else tensor.view(torch.float16)
        return torch.view_as_complex(parts.to(torch.float64).reshape(-1, 2).contiguous())
    if tensor.dtype.itemsize == 1 and tensor.is_floating_point():
        tensor = tensor.to(torch.float32)
    return tensor.to(torch.float64)


def truth(a: torch.Tensor, b: torch.Tensor) -> dict[str, float]:
    """Return what torch says of two arrays, over what is finite; NaN and Inf are counted."""
    x, y = as_double(a).reshape(-1), as_double(b).reshape(-1)
    fine_x, fine_y = torch.isfinite(x), torch.isfinite(y)
    both = fine_x & fine_y
    d = (y - x)[both]
    norm_a, norm_b, norm = (torch.linalg.vector_norm(v).item() for v in (x[fine_x], y[fine_y], d))
    inner = torch.vdot(x[both], y[both])
    return {
        "norm_a": norm_a,
        "norm_b": norm_b,
        "norm_diff": norm,
        "relative": norm / norm_a if norm_a else (math.inf if norm else 0.0),
        "max_abs_a": x[fine_x].abs().max().item() if fine_x.any() else 0.0,
        "max_abs_b": y[fine_y].abs().max().item() if fine_y.any() else 0.0,
        "max_abs_diff": d.abs().max().item() if len(d) else 0.0,
        "cosine": (inner.real.item() / norm_a / norm_b) if norm_a and norm_b else None,
        "nan_a": torch.isnan(x).sum().item(),
        "nan_b": torch.isnan(y).sum().item(),
        "inf_a": torch.isinf(x).sum().item(),
        "inf_b": torch.isinf(y).sum().item(),
    }


def numbers(tensor: TensorDiff) -> dict[str, float | None]:
    return {name: getattr(tensor, name) for name in truth(torch.ones(1), torch.ones(1))}


def nearly(expected: dict[str, float]) -> dict[str, object]:
    return {name: pytest.approx(value, rel=1e-9, abs=1e-12) for name, value in expected.items()}


# ---- numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [5, 300_001])  # in a shared chunk; in several, whose last block is not full
def test_numbers_are_those_of_torch(repo, dtype, count):
    a, b = (random_bits(dtype, count, seed) for seed in (1, 2))
    tensor = only(differ(repo, {"x": a}, {"x": b}))
    assert tensor.status == "changed"
    assert numbers(tensor) == nearly(truth(a, b))


def sums_of(a: torch.Tensor, b: torch.Tensor, dtype: str) -> Sums:
    old, new = (np.frombuffer(x.view(torch.uint8).numpy().tobytes(), np.uint8) for x in (a, b))
    return Meter().measure(old, new, dtype, dtype)


@given(
    st.sampled_from([name for name in DTYPES if not name.startswith("float8_e8")]),
    st.integers(1, 40_000),
    st.integers(0, 1 << 30),
)
@settings(max_examples=60, deadline=None)
def test_a_meter_agrees_with_torch_on_any_bits(dtype, count, seed):
    a, b = random_bits(dtype, count, seed), random_bits(dtype, count, seed + 1)
    sums, expected = sums_of(a, b, dtype), truth(a, b)
    norms = {"norm_a": sums.aa, "norm_b": sums.bb, "norm_diff": sums.dd}
    assert {name: math.sqrt(square) for name, square in norms.items()} == nearly(
        {name: expected[name] for name in norms}
    )
    for name in ("nan_a", "nan_b", "inf_a", "inf_b"):
        assert getattr(sums, name) == expected[name]
    assert sums.max_d == pytest.approx(expected["max_abs_diff"])


def test_large_integers_keep_the_digits_of_their_difference(repo):
    a = torch.tensor([2**62, -(2**62), 5], dtype=torch.int64)
    tensor = only(differ(repo, {"n": a}, {"n": a + torch.tensor([1, 2, 0])}))
    assert (tensor.max_abs_diff, tensor.norm_diff) == (2.0, pytest.approx(math.sqrt(5)))


def test_differences_of_integers_that_do_not_fit_into_64_bits_are_still_about_right(repo):
    low, high = torch.tensor([-(2**63)]), torch.tensor([2**63 - 1])
    assert only(differ(repo, {"n": low}, {"n": high})).max_abs_diff == pytest.approx(2.0**64)


def test_one_nan_does_not_hide_the_other_numbers(repo):
    a = torch.randn(300, 300)
    b = a * 1.5
    b[17, 4] = math.nan
    tensor = only(differ(repo, {"w": a}, {"w": b}))
    assert tensor.nan_b == 1 and tensor.nan_a == 0
    assert tensor.relative == pytest.approx(0.5, rel=1e-3) and tensor.cosine == pytest.approx(1, rel=1e-3)


def test_a_change_from_nothing_is_infinite_and_has_no_angle(repo):
    tensor = only(differ(repo, {"w": torch.zeros(9)}, {"w": torch.ones(9)}))
    assert tensor.relative == math.inf and tensor.cosine is None and tensor.norm_diff == 3


def test_zeros_of_another_sign_are_a_change_of_no_size(repo):
    tensor = only(differ(repo, {"w": torch.zeros(9)}, {"w": -torch.zeros(9)}))
    assert (tensor.status, tensor.norm_diff, tensor.relative) == ("changed", 0.0, 0.0)


def test_results_do_not_depend_on_threads(tmp_path):
    a, b = torch.randn(1_500_000), torch.randn(1_500_000)
    found = []
    for threads in (1, 2, 8):
        with cs.open(tmp_path / "repo", create=True, threads=threads) as repo:
            found.append(differ(repo, {"w": a}, {"w": b}).tensors)
    assert found[0] == found[1] == found[2]


def test_a_cast_is_measured_and_called_reshaped(repo):
    a = torch.randn(500_000)
    tensor = only(differ(repo, {"w": a}, {"w": a.bfloat16()}))
    assert tensor.status == "reshaped" and tensor.old.dtype == "float32" and tensor.new.dtype == "bfloat16"
    assert numbers(tensor) == nearly(truth(a, a.bfloat16()))


def test_another_shape_has_two_norms_and_no_difference(repo):
    tensor = only(differ(repo, {"w": torch.ones(20, 30)}, {"w": torch.ones(600)}))
    assert tensor.status == "reshaped" and tensor.old.shape == (20, 30) and tensor.new.shape == (600,)
    assert tensor.norm_a == tensor.norm_b == pytest.approx(math.sqrt(600))
    assert tensor.norm_diff is tensor.relative is tensor.cosine is None


def test_another_memory_layout_is_not_subtracted_element_by_element(repo):
    a = torch.randn(2, 3, 4, 5)
    tensor = only(differ(repo, {"w": a}, {"w": a.contiguous(memory_format=torch.channels_last)}))
    assert tensor.status == "reshaped" and tensor.norm_diff is None and "laid out" in tensor.note
    assert tensor.norm_a == pytest.approx(tensor.norm_b)


def test_real_and_complex_are_not_subtracted(repo):
    tensor = only(differ(repo, {"w": torch.ones(4)}, {"w": torch.ones(4, dtype=torch.complex64)}))
    assert tensor.status == "reshaped" and tensor.norm_diff is None and tensor.norm_b == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
        lambda x: (x * 9).to(torch.uint8).view(torch.bits8),
        lambda x: x.numpy().astype(">f4"),
    ],
    ids=["quantized", "bits", "foreign byte order"],
)
@pytest.mark.filterwarnings("ignore:torch.quantize")
@pytest.mark.parametrize("count", [100, 50_000])
def test_what_has_no_numbers_is_compared_bit_by_bit(repo, make, count):
    a = torch.rand(count)
    b = a.clone()
    b[-1] = 3
    first, again, later = (repo.commit({"w": make(x)}) for x in (a, a, b))
    other = repo.diff(first, later)
    assert repo.diff(first, again).same and not other.same
    (changed,) = other.changed
    assert changed.status == "changed" and changed.path.startswith("w")
    assert changed.norm_a is None and changed.nan_b is None


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,)])
def test_small_and_empty_shapes_are_compared(repo, shape):
    diff = differ(repo, {"w": torch.zeros(shape)}, {"w": torch.zeros(shape) + 2})
    assert only(diff).status == ("changed" if torch.zeros(shape).numel() else "equal")


# ---- reads ---------------------------------------------------------------------------------------------------


def test_equal_snapshots_are_not_read(repo):
    state = {"w": torch.randn(600_000), "b": torch.ones(3), "lr": 0.1}
    diff = differ(repo, state, state)
    assert diff.read_bytes == 0 and diff.same and set(statuses(diff).values()) == {"equal"}


def test_only_what_changed_is_read_and_equal_chunks_once(repo):
    a = {"one": torch.randn(1 << 20), "two": torch.randn(1 << 20)}
    b = {"one": a["one"].clone(), "two": a["two"]}
    b["one"][-1] += 1
    diff = differ(repo, a, b)
    assert diff.read_bytes == 5 << 20  # four chunks, and one of them of both sides
    changed, equal = diff.tensors
    assert changed.changed_bytes == 1 << 20 and changed.nbytes == 4 << 20
    assert equal.norm_a is None and equal.changed_bytes == 0
    assert numbers(changed) == nearly(truth(a["one"], b["one"]))


def test_without_norms_large_arrays_are_not_read(repo):
    a = {"w": torch.randn(1 << 20), "old": torch.ones(9000), "cast": torch.ones(9000)}
    b = {"w": a["w"] + 1, "new": torch.ones(9000), "cast": torch.ones(9000).double()}
    diff = differ(repo, a, b, norms=False)
    assert statuses(diff) == {"w": "changed", "new": "added", "cast": "reshaped", "old": "removed"}
    assert diff.read_bytes == 0 and not diff.measured
    assert diff.tensors[0].changed_bytes == 4 << 20 and diff.tensors[0].norm_a is None
    with pytest.raises(InvalidInput, match="norms"):
        diff.anomalies()


@pytest.mark.parametrize("norms", [True, False])
def test_a_small_array_is_equal_where_only_its_neighbour_in_the_chunk_changed(repo, norms):
    a = {f"b{n}": torch.full((8,), float(n)) for n in range(40)}
    b = {**a, "b7": torch.ones(8)}
    diff = differ(repo, a, b, norms=norms)
    assert [tensor.path for tensor in diff.changed] == ["b7"]


def test_unchanged_arrays_are_measured_where_that_is_asked_for(repo):
    w = torch.randn(400_000)
    w[5] = math.nan
    diff = differ(repo, {"w": w}, {"w": w})
    assert diff.anomalies("nan") == ()
    diff = repo.diff("HEAD~1", "HEAD", unchanged=True)
    assert [found.path for found in diff.anomalies("nan")] == ["w"] and diff.read_bytes == w.nbytes
    assert diff.tensors[0].status == "equal" and diff.tensors[0].norm_diff == 0


def test_damage_names_the_tensor_and_the_commit(repo):
    old = repo.commit({"fine": torch.randn(9000), "bad": torch.randn(9000)})
    new = repo.commit({"fine": torch.randn(9000), "bad": torch.randn(9000)})
    (extent,) = repo[new].manifest[("bad",)].extents
    flip(repo, extent.chunk)
    with pytest.raises(IdMismatch) as caught:
        repo.diff(old, new)
    assert caught.value.path == "bad" and caught.value.commit == str(new.id)


# ---- pairing -------------------------------------------------------------------------------------------------


def test_arrays_come_and_go(repo):
    diff = differ(repo, {"a": torch.ones(4), "b": torch.ones(4)}, {"b": torch.ones(4), "c": torch.full((4,), math.inf)})
    assert statuses(diff) == {"b": "equal", "c": "added", "a": "removed"}
    _, added, removed = diff.tensors
    assert (added.old, added.norm_a, added.norm_b, added.inf_b) == (None, None, 0.0, 4)
    assert (removed.new, removed.norm_a, removed.norm_b, removed.nbytes) == (None, 2.0, None, 16)


def test_tied_weights_are_one_tensor_with_two_names(repo):
    def tied(value: float) -> dict[str, torch.Tensor]:
        w = torch.full((5000,), value)
        return {"wte": w, "head": w}

    tensor = only(differ(repo, tied(1), tied(2)))
    assert (tensor.path, tensor.aliases, tensor.relative) == ("wte", ("head",), 1.0)


def test_a_tie_that_breaks_is_told(repo):
    w = torch.ones(5000)
    diff = differ(repo, {"wte": w, "head": w}, {"wte": w, "head": w * 3})
    assert statuses(diff) == {"wte": "equal", "head": "changed"}
    assert diff.changed[0].note == "the same as wte in a" and diff.changed[0].relative == 2.0


def test_views_of_one_memory_are_compared_once_by_its_bytes(repo):
    def views(value: float) -> dict[str, torch.Tensor]:
        flat = torch.full((6000,), value)
        return {"flat": flat, "first": flat[:4000], "last": flat[3000:]}

    (changed,) = differ(repo, views(1), views(2)).changed
    assert changed.relative == 1.0 and {"first", "last"} <= {*changed.aliases, changed.path.partition("/")[0]}


def test_expanded_arrays_are_compared_by_what_is_stored(repo):
    tensor = only(differ(repo, {"e": torch.ones(1, 3).expand(50, 3)}, {"e": torch.zeros(1, 3).expand(50, 3)}))
    assert tensor.new.shape == (50, 3) and tensor.norm_a == pytest.approx(math.sqrt(3)) and tensor.relative == 1


def test_parts_of_sparse_tensors_are_compared(repo):
    a = torch.eye(50).to_sparse()
    diff = differ(repo, {"s": a}, {"s": a * 2})
    assert statuses(diff) == {"s/@indices": "equal", "s/@values": "changed"}


def test_a_parameter_and_a_tensor_of_the_same_bits_are_equal(repo):
    assert differ(repo, {"w": torch.ones(9)}, {"w": torch.nn.Parameter(torch.ones(9))}).same


def test_a_tensor_and_an_array_of_the_same_numbers_are_equal(repo):
    assert differ(repo, {"w": torch.ones(9)}, {"w": np.ones(9, np.float32)}).same


def test_names_that_wrappers_changed_are_paired(repo):
    def named(prefix: str, value: float) -> dict[str, object]:
        return {"model": {f"{prefix}{n}.weight": torch.full((5000,), value) for n in range(3)}}

    diff = differ(repo, named("", 1), named("_orig_mod.module.", 2))
    assert {tensor.status for tensor in diff.tensors} == {"changed"} and len(diff.tensors) == 3
    assert diff.tensors[1].path == "model/_orig_mod.module.1.weight" and diff.tensors[1].relative == 1
    assert diff.tensors[1].note == "model/1.weight in a"


def test_names_that_could_mean_two_are_not_paired(repo):
    a = {"0.weight": torch.ones(3)}
    diff = differ(repo, a, {"module.0.weight": torch.ones(3), "_orig_mod.0.weight": torch.ones(3)})
    assert statuses(diff) == {"module.0.weight": "added", "_orig_mod.0.weight": "added", "0.weight": "removed"}


def test_select_leaves_out_what_does_not_match(repo):
    w = torch.ones(9000)
    a = {"model": {"wte": w, "head": w, "b": torch.ones(3)}, "opt": {"m": torch.ones(3)}, "lr": 1}
    b = {"model": {"wte": w * 2, "head": w * 2, "b": torch.zeros(3)}, "opt": {"m": torch.zeros(3)}, "lr": 2}
    diff = differ(repo, a, b, select="model/**")
    assert {tensor.path for tensor in diff.tensors} == {"model/wte", "model/head", "model/b"} and not diff.values
    assert [tensor.path for tensor in repo.diff("HEAD~1", select=["**/m", "lr"]).tensors] == ["opt/m"]
    assert [value.path for value in repo.diff("HEAD~1", select=["**/m", "lr"]).values] == ["lr"]


def test_the_new_side_is_head_where_none_is_named(repo):
    repo.commit({"n": 1})
    repo.commit({"n": 2})
    assert str(repo.diff("HEAD~1").values[0]) == "1 -> 2"
    with pytest.raises(RevisionNotFound):
        repo.diff("nowhere")


# ---- values, files, metrics, meta ----------------------------------------------------------------------------


def test_values_are_compared_key_by_key(repo):
    group = {"lr": 0.1, "betas": (0.9, 0.99), "params": list(range(100))}
    a = {"w": torch.ones(2), "opt": {"groups": [group], "gone": 1}, "flag": True, "same": [1, 2]}
    b = {
        "w": torch.ones(2),
        "opt": {"groups": [{**group, "lr": 0.05, "betas": (0.9, 0.999)}]},
        "flag": 1,
        "same": [1, 2],
    }
    told = {value.path: str(value) for value in differ(repo, a, b).values}
    assert told == {
        "opt/groups/0/lr": "0.1 -> 0.05",
        "opt/groups/0/betas/1": "0.99 -> 0.999",
        "opt/gone": "removed: 1",
        "flag": "True -> 1",
    }


def test_long_values_are_shortened_and_are_one(repo):
    a, b = tuple(range(700)), tuple(range(1, 701))
    (value,) = differ(repo, {"state": a}, {"state": b}).values
    assert value.old == a and len(str(value)) < 100


def test_a_nan_that_stays_is_no_difference_and_a_new_order_is_one(repo):
    assert differ(repo, {"x": math.nan, "y": 1}, {"x": math.nan, "y": 2}).values[0].path == "y"
    (value,) = differ(repo, {"d": {"a": 1, "b": 2}}, {"d": {"b": 2, "a": 1}}).values
    assert (value.path, value.status) == ("d", "changed")


def test_values_come_and_go_and_containers_change(repo):
    a = {"l": [torch.ones(2)], "old": 3}
    diff = differ(repo, a, {"l": (torch.ones(2),), "new": "x"})
    assert {value.path: str(value) for value in diff.values} == {
        "l": "list -> tuple",
        "new": "added: 'x'",
        "old": "removed: 3",
    }


def test_metrics_and_meta_are_compared(repo):
    old = repo.commit({}, metrics={"loss": 2.0, "acc": 0.1}, meta={"cfg": {"lr": 0.1, "layers": [1, 2]}, "same": None})
    new = repo.commit({}, metrics={"loss": 1.5, "acc": 0.1}, meta={"cfg": {"lr": 0.1, "layers": [1, 3]}, "same": None})
    diff = repo.diff(old, new)
    assert [(m.path, str(m)) for m in diff.metrics] == [("loss", "2.0 -> 1.5")]
    assert [(m.path, str(m)) for m in diff.meta] == [("cfg/layers/1", "2 -> 3")]
    assert diff.same


def test_files_are_compared_small_and_large(repo, tmp_path):
    def files(**content: str) -> dict[str, Path]:
        for name, text in content.items():
            (tmp_path / name).write_text(text)
        return {name: tmp_path / name for name in content}

    old = repo.commit({}, files=files(small="a", same="x", large="l" * 99_999, gone="g"))
    new = repo.commit({}, files=files(small="b", same="x", large="m" * 99_999, more="gh"))
    found = {file.name: (file.status, file.old_bytes, file.new_bytes) for file in repo.diff(old, new).files}
    assert found == {
        "small": ("changed", 1, 1),
        "large": ("changed", 99_999, 99_999),
        "more": ("added", None, 2),
        "gone": ("removed", 1, None),
    }


# ---- the report ----------------------------------------------------------------------------------------------


def test_anomalies_name_kind_and_place(repo):
    a = {"fine": torch.randn(4000), "boom": torch.randn(4000), "n": torch.tensor(1.0), "zero": torch.zeros(4000)}
    b = {"fine": a["fine"] * 2, "boom": a["boom"] * 1000, "n": torch.tensor(5000.0), "zero": torch.ones(4000)}
    a["count"], b["count"] = torch.arange(5), torch.arange(5) * 1_000_000
    b["fine"][0], b["fine"][1], b["fine"][2] = math.nan, math.inf, math.nan
    diff = differ(repo, a, b)
    assert [(found.kind, found.path) for found in diff.anomalies()] == [
        ("nan", "fine"),
        ("inf", "fine"),
        ("explode", "boom"),
    ]
    assert diff.anomalies("nan")[0].why == "2 of 4,000 are NaN, 0 before"
    assert {tensor.path for tensor in diff.tensors if tensor.exploded} == {"boom"}
    with pytest.raises(InvalidInput, match="spike"):
        diff.anomalies("spike")


def test_one_value_that_grows_a_hundredfold_is_an_explosion(repo):
    a = torch.ones(1_000_000)
    b = a.clone()
    b[7] = 101
    tensor = only(differ(repo, {"w": a}, {"w": b}))
    assert tensor.relative < 1 and tensor.exploded


def test_tensors_are_ranked(repo):
    a = {"x": torch.ones(9), "y": torch.full((100,), 10.0), "z": torch.ones(9)}
    b = {"x": torch.full((9,), 3.0), "y": torch.full((100,), 13.0), "z": torch.ones(9)}
    b["z"][0] = math.nan
    diff = differ(repo, a, b)
    order = {by: "".join(tensor.path for tensor in diff.ranked(by)) for by in ("rel", "abs", "norm", "bytes", "name")}
    assert order == {"rel": "zxy", "abs": "zyx", "norm": "zyx", "bytes": "zyx", "name": "xyz"}
    with pytest.raises(InvalidInput, match="sorted"):
        diff.ranked("size")


def test_a_diff_shows_itself_and_escapes_names(repo):
    name = "<script>"
    diff = differ(repo, {name: torch.ones(9), "v": "<b>"}, {name: torch.full((9,), math.nan), "v": "<i>"})
    assert "1 changed" in repr(diff) and "9 NaN" in repr(diff) and "'<b>' -> '<i>'" in repr(diff)
    html = diff._repr_html_()
    assert "&lt;script&gt;" in html and "<script>" not in html and "<b>" not in html


def test_the_representation_of_a_large_diff_is_short(repo):
    a = {f"t{n}": torch.full((3,), float(n)) for n in range(200)}
    diff = differ(repo, a, {name: value + 1 for name, value in a.items()})
    assert len(repr(diff).splitlines()) == 7 and "195 more" in repr(diff)
    assert diff._repr_html_().count("<tr>") < 30


def test_a_diff_is_a_value(repo):
    diff = differ(repo, {"w": torch.ones(3)}, {"w": torch.zeros(3)})
    assert diff == repo.diff("HEAD~1", "HEAD")
    with pytest.raises(dataclasses.FrozenInstanceError):
        diff.tensors[0].status = "equal"
