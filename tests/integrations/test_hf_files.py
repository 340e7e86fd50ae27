"""Checkpoint folders of Hugging Face: weights in one file or many, states of the trainer, files beside them."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch as library
import torch

from chainstore.errors import InvalidInput
from chainstore.integrations.hf_files import read_hf
from chainstore.testing.same import assert_same

MODEL = {"w": torch.arange(12.0).reshape(3, 4), "b": torch.ones(3).bfloat16()}  # in the order of a safetensors file


@pytest.fixture
def folder(tmp_path) -> Path:
    path = tmp_path / "checkpoint-5"
    path.mkdir()
    return path


def shard(path: Path, suffix: str) -> None:
    stem = "model" if suffix == ".safetensors" else "pytorch_model"
    save = library.save_file if suffix == ".safetensors" else torch.save
    places = {}
    for number, (name, value) in enumerate(MODEL.items(), 1):
        places[name] = f"{stem}-{number:05}-of-00002{suffix}"
        save({name: value}, path / places[name])
    (path / f"{stem}{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_shards_are_put_together_and_are_no_files(folder, suffix):
    shard(folder, suffix)
    (folder / "config.json").write_text("{}")
    found = read_hf(folder)
    assert_same({"model": MODEL}, found.state, sharing=False)
    assert found.files == {"config.json": folder / "config.json"}


def test_one_file_of_weights_and_the_states_of_a_trainer_are_read(folder):
    library.save_file(MODEL, folder / "model.safetensors")
    states = {"optimizer.pt": {"state": {0: {"m": torch.ones(2)}}}, "scheduler.pt": {"last_epoch": 5}}
    for name, state in states.items():
        torch.save(state, folder / name)
    rng = {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.get_rng_state()}
    torch.save(rng, folder / "rng_state.pth")
    history = [
        {"step": 4, "loss": 9.0},
        {"step": 5, "loss": 0.5, "epoch": 1.5},
        {"step": 5, "eval_loss": 0.25, "x": "y"},
    ]
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 5, "epoch": 1.5, "log_history": history}))
    (folder / "sub").mkdir()
    (folder / "sub" / "notes.txt").write_text("x")
    found = read_hf(folder)
    expected = {"model": MODEL, "optimizer": states["optimizer.pt"], "scheduler": states["scheduler.pt"], "rng": rng}
    assert_same(expected, found.state, sharing=False)
    assert (found.step, found.epoch, found.metrics) == (5, 1.5, {"loss": 0.5, "eval_loss": 0.25})
    assert sorted(found.files) == ["sub/notes.txt", "trainer_state.json"]


def test_what_would_run_code_is_kept_as_a_file_and_told(folder):
    library.save_file(MODEL, folder / "model.safetensors")
    for name in ("training_args.bin", "optimizer.pt"):
        torch.save(torch.nn.Linear(2, 2), folder / name)
    found = read_hf(folder)
    assert sorted(found.files) == ["optimizer.pt", "training_args.bin"] and list(found.state) == ["model"]
    assert len(found.notices) == 1 and "optimizer.pt" in found.notices[0] and "Linear" in found.notices[0]


def test_weights_in_two_formats_are_read_once_and_the_others_kept_as_a_file(folder):
    library.save_file(MODEL, folder / "model.safetensors")
    torch.save({"other": torch.ones(1)}, folder / "pytorch_model.bin")
    found = read_hf(folder)
    assert_same({"model": MODEL}, found.state, sharing=False)
    assert list(found.files) == ["pytorch_model.bin"]


def test_an_adapter_is_read_beside_or_without_a_model(folder):
    library.save_file({"lora": torch.ones(2)}, folder / "adapter_model.safetensors")
    assert list(read_hf(folder).state) == ["adapter"]
    library.save_file(MODEL, folder / "model.safetensors")
    assert list(read_hf(folder).state) == ["model", "adapter"]


@pytest.mark.parametrize(
    "index",
    [
        b"{",
        b"[]",
        b'{"weight_map": 3}',
        b'{"weight_map": {"w": "../x.safetensors"}}',
        b'{"weight_map": {"w": "x.pkl"}}',
        b'{"weight_map": {"w": "gone.safetensors"}}',
    ],
)
def test_an_index_that_leads_elsewhere_is_refused(folder, index):
    (folder / "model.safetensors.index.json").write_bytes(index)
    with pytest.raises(InvalidInput, match=r"index|lacks"):
        read_hf(folder)


def test_a_shard_that_lacks_what_the_index_says_is_refused(folder):
    shard(folder, ".safetensors")
    library.save_file({"other": torch.ones(1)}, folder / "model-00002-of-00002.safetensors")
    with pytest.raises(InvalidInput, match="'b'"):
        read_hf(folder)


def test_a_folder_without_weights_is_refused_with_a_way_out(folder):
    with pytest.raises(InvalidInput, match="holds no model") as refused:
        read_hf(folder)
    assert "--as-file" in refused.value.hint
