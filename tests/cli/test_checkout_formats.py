"""`checkout -o`: formats that other tools load, and what happens to an output that is there already."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch as library
import torch

import chainstore as cs
from chainstore.cli.formats import FORMATS
from chainstore.integrations.files import write_torch
from chainstore.testing.same import assert_same

MODEL = {
    "w": torch.arange(600.0).reshape(20, 30),
    "b": torch.ones(3).bfloat16(),
    "f8": torch.arange(4.0).to(torch.float8_e4m3fn),
}
STATE = {"model": MODEL, "optimizer": {"m": torch.zeros(20, 30), "step": 3}}


@pytest.fixture
def stored(chain, place) -> Path:
    Path("config.json").write_text("{}")
    with cs.init(place / ".chain", encrypt=False) as repo:
        repo.commit(STATE, files={"config.json": "config.json", "vocab/a.txt": "config.json"})
        repo.commit({**STATE, "model": {**MODEL, "w": MODEL["w"] + 1}}, files={"config.json": "config.json"})
    Path("config.json").unlink()
    return place


def tree(root: str) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in Path(root).rglob("*") if p.is_file()}


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert_same({name: found[name] for name in expected}, expected, sharing=False)
    assert set(found) == set(expected)


def test_safetensors_hold_the_model_and_say_what_is_left_out(chain, stored):
    done = chain("checkout", "main~1", "-o", "m.safetensors", "--json")
    assert done.code == 0 and done.json["format"] == "safetensors" and done.json["schema"] == "chain.checkout/1"
    assert [file["name"] for file in done.json["files"]] == ["m.safetensors"]
    assert "optimizer" in done.err and "2 committed files" in done.err
    same(library.load_file("m.safetensors"), MODEL)


def test_safetensors_hold_what_is_selected(chain, stored):
    assert chain("checkout", "main~1", "-o", "all.safetensors", "--select", "**", "--exclude", "model/f8").code == 0
    assert set(library.load_file("all.safetensors")) == {"model.w", "model.b", "optimizer.m"}
    done = chain("checkout", "main", "-o", "none.safetensors", "--select", "nothing/**")
    assert done.code == 1 and "nothing/**" in done.err and not Path("none.safetensors").exists()


def test_a_state_without_a_model_is_written_whole(chain, stored):
    library.save_file(MODEL, "given.safetensors", {"format": "pt"})
    assert chain("import", "given.safetensors", "-b", "flat").code == 0
    assert chain("checkout", "flat", "-o", "back.safetensors").code == 0
    assert Path("back.safetensors").read_bytes() == Path("given.safetensors").read_bytes()


def test_hf_is_a_folder_with_weights_and_the_committed_files(chain, stored):
    assert chain("checkout", "main~1", "-o", "out", "--format", "hf").code == 0
    assert set(tree("out")) == {"config.json", "vocab/a.txt", "model.safetensors"}
    same(library.load_file("out/model.safetensors"), MODEL)


def test_hf_is_sharded_as_asked_with_an_index(chain, stored):
    done = chain("checkout", "main~1", "-o", "out", "--format", "hf", "--shard-size", "100", "--exclude", "vocab/*")
    assert done.code == 0
    index = json.loads(Path("out/model.safetensors.index.json").read_text())
    assert set(tree("out")) == {"config.json", "model.safetensors.index.json", *index["weight_map"].values()}
    found = {}
    for name in {*index["weight_map"].values()}:
        found |= library.load_file(f"out/{name}")
    same(found, MODEL)
    assert chain("import", "out", "-b", "again").code == 0
    assert_same(set(MODEL), set(cs.open(".chain").checkout("again")["model"]))


def test_an_imported_folder_comes_back_as_the_same_files(chain, stored):
    Path("given").mkdir()
    library.save_file(MODEL, "given/model.safetensors", {"format": "pt"})
    library.save_file({"lora": torch.ones(2)}, "given/adapter_model.safetensors", {"format": "pt"})
    Path("given/tokenizer.json").write_text("{}")
    assert chain("import", "given", "-b", "hf").code == 0
    assert chain("checkout", "hf", "-o", "back", "--format", "hf").code == 0
    assert tree("back") == tree("given")


def test_floats_are_written_in_the_type_that_is_asked_for(chain, stored):
    assert chain("checkout", "main~1", "-o", "out", "--format", "hf", "--dtype", "float16").code == 0
    assert library.load_file("out/model.safetensors")["w"].dtype == torch.float16
    assert chain("checkout", "main~1", "-o", "x.safetensors", "--dtype", "int8").code == 1


@pytest.mark.parametrize("form", FORMATS)
def test_an_equal_output_is_left_alone(chain, stored, form):
    assert chain("checkout", "main", "-o", "out", "--format", form).code == 0
    files = [Path("out")] if Path("out").is_file() else [path for path in Path("out").rglob("*") if path.is_file()]
    times = [path.stat().st_mtime_ns for path in files]
    done = chain("checkout", "main", "-o", "out", "--format", form, "--json")
    assert done.code == 0 and all(file["unchanged"] and not file["replaced"] for file in done.json["files"])
    assert [path.stat().st_mtime_ns for path in files] == times
    again = chain("checkout", "main", "-o", "out", "--format", form)
    assert "0 files written" in again.out and "left alone" in again.out


@pytest.mark.parametrize("form", FORMATS)
def test_another_output_is_refused_before_anything_is_written_and_replaced_with_force(chain, stored, form):
    chain("checkout", "main~1", "-o", "out", "--format", form)
    before = Path("out").read_bytes() if Path("out").is_file() else tree("out")
    done = chain("checkout", "main", "-o", "out", "--format", form)
    assert done.code == 1 and "--force" in done.err and "please report" not in done.err
    assert (Path("out").read_bytes() if Path("out").is_file() else tree("out")) == before
    assert chain("checkout", "main", "-o", "out", "--format", form, "--force").code == 0
    assert chain("checkout", "main", "-o", "new", "--format", form).code == 0
    if Path("out").is_file():
        assert Path("out").read_bytes() == Path("new").read_bytes()
    else:
        assert tree("out").items() >= tree("new").items() and "vocab/a.txt" in tree("out")


@pytest.mark.parametrize("form", ["dir", "hf"])
def test_delete_makes_a_folder_exactly_what_the_commit_holds(chain, stored, form, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    chain("checkout", "main~1", "-o", "out", "--format", form)
    Path("out/deep/er").mkdir(parents=True)
    Path("out/deep/er/mine.txt").write_text("x")
    Path("out/link").symlink_to(outside)
    before = tree("out")
    dry = chain("checkout", "main", "-o", "out", "--format", form, "--delete", "--dry-run", "--json")
    assert tree("out") == before and dry.json["deleted"] == ["deep/er/mine.txt", "link", "vocab/a.txt"]
    done = chain("checkout", "main", "-o", "out", "--format", form, "--delete")
    assert done.code == 0 and "deleted  deep/er/mine.txt" in done.out and "3 files deleted" in done.out
    chain("checkout", "main", "-o", "new", "--format", form)
    assert tree("out") == tree("new") and not Path("out/deep").exists() and not Path("out/link").is_symlink()
    assert (outside / "precious").read_text() == "x"


def test_a_folder_with_other_files_is_refused_and_names_them(chain, stored):
    Path("out").mkdir()
    Path("out/mine.txt").write_text("x")
    done = chain("checkout", "main", "-o", "out", "--format", "hf", "--json")
    error = done.json["error"]
    assert done.code == 1 and error["code"] == "already-exists" and "mine.txt" in error["message"]
    assert "--delete" in error["hint"] and set(tree("out")) == {"mine.txt"}
    done = chain("checkout", "main", "-o", "out", "--format", "hf", "--force", "--json")
    assert done.code == 0 and done.json["foreign"] == ["mine.txt"] and "mine.txt" in tree("out")


def test_an_empty_folder_and_one_that_was_interrupted_are_filled(chain, stored):
    Path("out").mkdir()
    assert chain("checkout", "main", "-o", "out").code == 0
    whole = tree("out")
    Path("out/values.json").unlink()
    assert chain("checkout", "main", "-o", "out").code == 0 and tree("out") == whole


@pytest.mark.parametrize("form", FORMATS)
def test_a_dry_run_says_what_would_happen_and_does_nothing(chain, stored, form):
    done = chain("checkout", "main", "-o", "new", "--format", form, "--dry-run")
    assert done.code == 0 and "would be written" in done.out and not Path("new").exists()
    chain("checkout", "main~1", "-o", "out", "--format", form)
    done = chain("checkout", "main", "-o", "out", "--format", form, "--dry-run")
    assert done.code == 0 and "replaced" in done.out and "would be refused" in done.err


def test_delete_keeps_away_from_what_is_precious(chain, stored, monkeypatch, tmp_path):
    Path("mine.txt").write_text("x")
    for output in (".", "..", "/", stored):
        done = chain("checkout", "main", "-o", output, "--format", "dir", "--delete")
        assert done.code == 1 and "--delete" in done.err
    home = tmp_path / "home"
    (home / "below").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home / "below"))
    assert chain("checkout", "main", "-o", home, "--format", "dir", "--delete").code == 1
    assert Path("mine.txt").exists() and Path(".chain/format").exists()


def test_nothing_is_written_into_the_repository(chain, stored):
    for output in (".chain", ".chain/out", ".chain/x.pt", ".chain/packs/m.safetensors"):
        done = chain("checkout", "main", "-o", output, "--force")
        assert done.code == 1 and "inside the repository" in done.err
    assert chain("verify").code == 0


def test_options_that_a_format_does_not_know_are_wrong_usage(chain, stored):
    for words in (
        ["-o", "x.pt", "--dtype", "float16"],
        ["-o", "x.pt", "--delete"],
        ["-o", "x.safetensors", "--shard-size", "1GB"],
        ["-o", "x", "--force", "--delete"],
        ["--force"],
        ["--exclude", "x"],
    ):
        assert chain("checkout", "main", *words).code == 2, words
    assert chain("checkout", "main", "-o", "x", "--format", "hf", "--shard-size", "big").code == 1
    assert sorted(path.name for path in stored.iterdir()) == [".chain"]


def test_excluded_paths_and_files_are_left_out(chain, stored):
    done = chain("checkout", "main~1", "-o", "out", "--exclude", "optimizer/**", "--exclude", "vocab/**")
    assert done.code == 0
    names = set(tree("out"))
    assert "config.json" in names and "state/model/w.npy" in names
    assert not [name for name in names if "optimizer" in name or "vocab" in name]
    assert chain("checkout", "main", "-o", "o.pt", "--exclude", "model/**").code == 0
    assert set(torch.load("o.pt", weights_only=True)) == {"optimizer"}


def test_an_npz_is_the_same_bytes_each_time(chain, stored):
    for name in ("a.npz", "b.npz"):
        assert chain("checkout", "main", "-o", name).code == 0
    assert Path("a.npz").read_bytes() == Path("b.npz").read_bytes()
    with np.load("a.npz") as found:
        assert np.array_equal(found["optimizer/m"], np.zeros((20, 30), np.float32))


def test_a_full_disk_is_told_as_such_and_leaves_nothing(chain, stored):
    if not os.access("/dev/full", os.W_OK):
        pytest.skip("no /dev/full here")
    with open("/dev/full", "wb", buffering=0) as stream, pytest.raises(OSError, match="No space"):
        write_torch(STATE, stream)
