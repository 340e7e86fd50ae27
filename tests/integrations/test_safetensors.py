"""Safetensors: what we write is what the library writes and reads, and what it writes we read; hostile ones nobody."""

import json

import numpy as np
import pytest
import safetensors.torch as library
import torch

import chainstore as cs
from chainstore.errors import InvalidInput, PathNotFound
from chainstore.integrations.safetensors_files import read_safetensors
from chainstore.model.safetensors import DTYPES, encode_header, order, split
from chainstore.model.spec import Spec
from chainstore.repository import open as open_repository
from chainstore.testing.same import assert_same

SAVED = sorted(name for name in DTYPES.values() if name != "float8_e8m0fnu")  # the library has no name for that one


@pytest.fixture
def repo(tmp_path):
    with cs.init(tmp_path / "repo", encrypt=False) as repo:
        yield repo


def tensor(dtype: str, *shape: int) -> torch.Tensor:
    """Return a tensor of any type with bytes that differ."""
    kind = getattr(torch, dtype)
    count = int(np.prod(shape)) if shape else 1
    if kind == torch.bool:
        return (torch.arange(count) % 2 == 0).reshape(shape)
    if kind.itemsize == 1:
        return (torch.arange(count) % 100).to(torch.uint8).view(kind).reshape(shape)
    return torch.arange(count).to(torch.float32).to(kind).reshape(shape)


def bits(value: torch.Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    return value.dtype, value.shape, value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def test_the_file_is_the_librarys_byte_for_byte(repo, tmp_path):
    model = {f"{dtype}.{n}": tensor(dtype, *shape) for dtype in SAVED for n, shape in enumerate([(3, 5), (4,), (0, 2)])}
    model |= {"scalar": torch.tensor(3.5), "é": torch.ones(2), 'quo"te': torch.zeros(1)}
    repo.commit({"model": model})
    (path,) = repo["HEAD"].save_safetensors(tmp_path / "m.safetensors")
    assert path.read_bytes() == library.save(model, {"format": "pt"})


@pytest.mark.parametrize("dtype", SAVED)
def test_the_library_reads_every_type_that_we_write(repo, tmp_path, dtype):
    made = tensor(dtype, 4, 6)
    repo.commit({"model": {"w": made}})
    repo["HEAD"].save_safetensors(tmp_path / "m.safetensors")
    assert bits(library.load_file(tmp_path / "m.safetensors")["w"]) == bits(made)


@pytest.mark.parametrize("dtype", SAVED)
def test_we_read_every_type_that_the_library_writes(tmp_path, dtype):
    made = {"w": tensor(dtype, 4, 6), "empty": tensor(dtype, 0)}
    library.save_file(made, tmp_path / "m.safetensors")
    found = read_safetensors(tmp_path / "m.safetensors")
    assert {name: bits(value) for name, value in found.items()} == {name: bits(value) for name, value in made.items()}


def test_every_type_of_the_format_comes_back_through_our_own_reader(repo, tmp_path):
    model = {dtype: tensor(dtype, 3, 2) for dtype in DTYPES.values()}
    repo.commit({"model": model})
    repo["HEAD"].save_safetensors(tmp_path / "m.safetensors")
    found = read_safetensors(tmp_path / "m.safetensors")
    assert {name: bits(value) for name, value in found.items()} == {name: bits(value) for name, value in model.items()}


def test_arrays_in_any_order_are_written_in_that_of_c(repo, tmp_path):
    base = torch.arange(24.0).reshape(4, 6)
    model = {
        "transposed": base.t().clone(memory_format=torch.preserve_format),
        "view": base[1:3, ::2],
        "expanded": torch.arange(3.0).expand(2, 3),
        "channels": torch.arange(48.0).reshape(1, 3, 4, 4).to(memory_format=torch.channels_last),
        "conjugate": torch.tensor([1 + 2j, 3j]).conj(),
        "numpy": np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3)),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    repo.commit({"model": model})
    repo["HEAD"].save_safetensors(tmp_path / "m.safetensors")
    found = library.load_file(tmp_path / "m.safetensors")
    for name, value in model.items():
        assert torch.equal(found[name], torch.as_tensor(value).detach().resolve_conj()), name


def test_tied_tensors_are_written_as_copies_and_told(tmp_path):
    told = []
    weight = torch.randn(4, 4)
    with cs.init(tmp_path / "repo", encrypt=False) as repo:
        repo.commit({"model": {"head": weight, "embedding": weight, "third": weight, "other": torch.ones(1)}})
    with open_repository(tmp_path / "repo", observer=told.append) as repo:
        repo["HEAD"].save_safetensors(tmp_path / "m.safetensors")
    found = library.load_file(tmp_path / "m.safetensors")
    assert all(torch.equal(found[name], weight) for name in ("head", "embedding", "third"))
    texts = [event.text for event in told if hasattr(event, "text")]
    assert any("embedding" in text and "copy" in text for text in texts)


def test_names_are_joined_by_dots_below_what_the_selection_spells_out(repo, tmp_path):
    state = {"model": {"block": {"w": torch.ones(1)}, "list": [torch.ones(2), torch.ones(3)]}, "x": torch.ones(4)}
    repo.commit(state)
    snap = repo["HEAD"]

    def names(select):
        (path,) = snap.save_safetensors(tmp_path / "m.safetensors", select)
        return set(library.load_file(path))

    assert names("model/**") == {"block.w", "list.0", "list.1"}
    assert names("model/block/*") == {"w"}
    assert names("model/block/w") == {"w"}
    assert names("**") == {"model.block.w", "model.list.0", "model.list.1", "x"}
    assert names(["model/block/*", "x"]) == {"model.block.w", "x"}
    assert {*snap.plan_safetensors("**", "x").files} and len(snap.plan_safetensors("**", "model/**").files) == 1


def test_two_tensors_of_one_name_are_refused(repo, tmp_path):
    repo.commit({"model": {"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)}})
    with pytest.raises(InvalidInput, match=r"a\.b"):
        repo["HEAD"].save_safetensors(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_shards_are_no_larger_than_asked_and_their_index_says_where_all_is(repo, tmp_path):
    model = {f"layer.{n}": torch.full((64,), float(n)) for n in range(10)} | {"big": torch.ones(500)}
    repo.commit({"model": model})
    paths = repo["HEAD"].save_safetensors(tmp_path / "out", shard_size=1000)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 10 * 256 + 2000
    assert sorted(index["weight_map"]) == sorted(model)
    files = sorted({*index["weight_map"].values()})
    assert files == sorted(path.name for path in paths if path.suffix == ".safetensors")
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    for file in files:
        found = library.load_file(tmp_path / "out" / file)
        assert len(found) == 1 or sum(value.nbytes for value in found.values()) <= 1000
        for name, value in found.items():
            assert index["weight_map"][name] == file and torch.equal(value, model[name])


def test_floats_are_written_in_another_type_and_others_keep_theirs(repo, tmp_path):
    repo.commit({"model": {"w": torch.linspace(0, 1, 7), "n": torch.arange(3), "a": np.ones(2, np.float64)}})
    repo["HEAD"].save_safetensors(tmp_path / "m.safetensors", dtype="float16")
    found = library.load_file(tmp_path / "m.safetensors")
    assert torch.equal(found["w"], torch.linspace(0, 1, 7).half()) and found["n"].dtype == torch.int64
    assert found["a"].dtype == torch.float16
    for wrong in ("int8", "bf16", "float"):
        with pytest.raises(InvalidInput, match=wrong):
            repo["HEAD"].save_safetensors(tmp_path / "m.safetensors", dtype=wrong)
    with pytest.raises(InvalidInput, match="lacks bfloat16"):
        repo["HEAD"].save_safetensors(tmp_path / "a.safetensors", "model/a", dtype="bfloat16")
    assert not (tmp_path / "a.safetensors").exists()


def test_what_the_format_cannot_hold_is_refused_by_name(repo, tmp_path):
    for value in (torch.eye(2).to_sparse(), torch.zeros(2, dtype=torch.complex128), np.zeros(2, "<U3")):
        repo.commit({"model": {"good": torch.ones(1), "bad": value}})
        with pytest.raises(InvalidInput, match="bad"):
            repo["HEAD"].save_safetensors(tmp_path / "m.safetensors")
    sparse = torch.eye(2).to_sparse()
    repo.commit({"elsewhere": sparse, "model": {"tied": sparse}})
    with pytest.raises(InvalidInput, match="tied"):
        repo["HEAD"].save_safetensors(tmp_path / "m.safetensors")
    repo.commit({"model": {"__metadata__": torch.ones(1)}})
    with pytest.raises(InvalidInput, match="__metadata__"):
        repo["HEAD"].save_safetensors(tmp_path / "m.safetensors")
    repo.commit({"opt": torch.ones(1)})
    with pytest.raises(PathNotFound):
        repo["HEAD"].save_safetensors(tmp_path / "m.safetensors")
    assert not list(tmp_path.glob("*.safetensors*"))


def test_a_plan_says_the_exact_sizes_before_anything_is_read(repo, tmp_path):
    repo.commit({"model": {"a": torch.ones(100), "b": torch.ones(3, dtype=torch.bfloat16), "c": "text"}})
    plan = repo["HEAD"].plan_safetensors(shard_size=300)
    paths = repo["HEAD"].save_safetensors(tmp_path / "out", shard_size=300)
    assert [file.nbytes for file in plan.files] == [path.stat().st_size for path in paths]
    assert plan.left_out == ("model/c",) and not plan.tied


def test_headers_are_padded_so_that_the_data_is_aligned():
    for length in range(20):
        header = encode_header({"n" * length: Spec("float64", (1,))})
        assert len(header) % 8 == 0 and int.from_bytes(header[:8], "little") == len(header) - 8


def test_the_largest_items_come_first():
    specs = {"a": Spec("uint8", (3,)), "b": Spec("float64", (1,)), "c": Spec("bfloat16", (1,))}
    assert order(specs) == ["b", "c", "a"]


def test_a_tensor_that_is_larger_than_a_shard_has_its_own():
    specs = {name: Spec("uint8", (size,)) for name, size in {"a": 4, "b": 100, "c": 6, "d": 4, "e": 1}.items()}
    assert split(specs, 10) == [["a"], ["b"], ["c", "d"], ["e"]]
    assert split(specs, None) == [["a", "b", "c", "d", "e"]]


def test_a_state_of_the_library_is_committed_and_written_as_it_was(repo, tmp_path):
    model = {"n": torch.arange(4), "w": torch.randn(8, 8).bfloat16()}  # in the order of the file
    library.save_file(model, tmp_path / "a.safetensors", {"format": "pt"})
    repo.commit({"model": read_safetensors(tmp_path / "a.safetensors")})
    assert_same(model, repo.checkout()["model"], sharing=False)
    repo["HEAD"].save_safetensors(tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
