"""What a file looks like, told from its first bytes."""

import gzip
import io
import json
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch as library
import torch

from chainstore.integrations.kinds import recognize, walk


def zipped(name: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(name, "x")
    return stream.getvalue()


def tarred() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("x"))
    return stream.getvalue()


NO_CHECKPOINTS = {
    "zip": (zipped("a.txt"), "a zip archive", "unpack"),
    "cut zip": (zipped("a.txt")[:20], "cut off", "again"),
    "tar": (tarred(), "a tar archive", "tar -xf"),
    "gzip": (gzip.compress(b"x"), "a gzip archive", "gunzip"),
    "html": (b"\n<!DOCTYPE html><html>", "an HTML page", "download"),
    "json": (json.dumps({"a": 1}).encode(), "JSON", ""),
    "onnx": (b"\x08\x08\x12\x07pytorch", "an ONNX model", ""),
    "gguf": (b"GGUF\x03\x00\x00\x00", "a GGUF model", ""),
    "hdf5": (b"\x89HDF\r\n\x1a\n", "an HDF5 file", ""),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid", "a Git LFS pointer", "git lfs pull"),
    "pickle": (pickle.dumps({"a": 1}), "a pickle", "torch.save"),
    "text": (b"hello\n", "text", ""),
    "empty": (b"", "an empty file", ""),
    "noise": (bytes(range(128, 256)), "binary data", ""),
}


@pytest.mark.parametrize("name", NO_CHECKPOINTS)
def test_what_is_no_checkpoint_is_told_in_words(tmp_path, name):
    content, what, hint = NO_CHECKPOINTS[name]
    path = tmp_path / "file"
    path.write_bytes(content)
    look = recognize(path)
    assert look.kind == "" and what in look.what and hint in look.hint


def test_checkpoints_are_told_by_content_whatever_they_are_called(tmp_path):
    path = tmp_path / "file"
    torch.save({"w": torch.ones(2)}, path)
    assert recognize(path).kind == "torch"
    torch.save({"w": torch.ones(2)}, path, _use_new_zipfile_serialization=False)
    assert recognize(path).kind == "torch"
    library.save_file({"w": torch.ones(2)}, path)
    assert recognize(path).kind == "safetensors"
    with path.open("wb") as stream:
        np.save(stream, np.ones(2))
    assert recognize(path).kind == "numpy"
    with path.open("wb") as stream:
        np.savez(stream, a=np.ones(2))
    assert recognize(path).kind == "numpy"


def test_a_torchscript_program_is_told_from_weights(tmp_path):
    path = tmp_path / "file"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("m/data.pkl", "m/constants.pkl", "m/code/x.py"):
            archive.writestr(name, "x")
    look = recognize(path)
    assert look.kind == "" and "TorchScript" in look.what and "state_dict" in look.hint


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (".metadata", "dcp"),
        ("model.safetensors", "hf"),
        ("pytorch_model.bin.index.json", "hf"),
        ("adapter_model.safetensors", "hf"),
        ("x.txt", ""),
    ],
)
def test_folders_are_told_by_the_files_in_them(tmp_path, name, kind):
    (tmp_path / name).touch()
    assert recognize(tmp_path).kind == kind


def test_a_folder_of_checkpoints_says_how_they_are_named(tmp_path):
    for step in (1, 2):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "model.safetensors").touch()
    look = recognize(tmp_path)
    assert look.kind == "" and "2 checkpoints" in look.what and f"{tmp_path.name}/*" in look.hint


def test_a_walk_leaves_hidden_folders_and_links_alone(tmp_path):
    for name in ("a.json", "b/c.json", ".git/config", ".hidden"):
        Path(tmp_path, name).parent.mkdir(exist_ok=True)
        Path(tmp_path, name).touch()
    (tmp_path / "loop").symlink_to(tmp_path)
    assert [name for name, _ in walk(tmp_path)] == [".hidden", "a.json", "b/c.json"]
