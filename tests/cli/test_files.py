"""`init`, `commit FILE` and `checkout -o`: from files into the chain and back, bit for bit, and nowhere else."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import chainstore as cs
from chainstore.cli.folder import Folder, Part, check_names
from chainstore.cli.formats import array_name
from chainstore.errors import InvalidInput
from chainstore.integrations.safetensors_files import read_safetensors
from chainstore.testing.same import assert_same


def test_init_makes_a_repository_and_says_where_its_key_is(chain, place, own_settings):
    done = chain("init")
    assert done.code == 0 and (place / ".chain" / "format").exists()
    assert str(place / ".chain") in done.out and "key" in done.out and "chain commit" in done.out
    assert list(own_settings.glob("*.key")) or (place / ".chain" / "user.key").exists()


def test_init_of_a_folder_makes_that_folder_the_repository(chain, place):
    done = chain("init", "runs/gpt", "--json")
    assert done.json["path"] == str(place / "runs" / "gpt") and done.json["encrypted"]
    assert (place / "runs" / "gpt" / "format").exists()
    assert chain("-C", "runs/gpt", "log").code == 0


def test_init_without_encryption_makes_no_key(chain, place, own_settings):
    assert chain("init", "--no-encrypt", "--codec", "fast", "--json").json["encrypted"] is False
    assert not list(own_settings.glob("*.key"))


def test_init_takes_the_passphrase_from_the_environment_or_a_terminal_only(chain, place, monkeypatch):
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        done = chain("init", "--passphrase")
    assert done.code == 12 and "CHAIN_PASSPHRASE" in done.err
    monkeypatch.setenv("CHAIN_PASSPHRASE", "correct horse")
    assert chain("init", "--passphrase").code == 0
    monkeypatch.setenv("CHAIN_PASSPHRASE", "battery staple")
    assert chain("log").code == 12


@pytest.fixture
def empty(chain, place) -> Path:
    assert chain("init", "--no-encrypt").code == 0
    return place


STATE = {
    "model": {"w": torch.arange(12.0).reshape(3, 4), "b": torch.ones(3, dtype=torch.bfloat16)},
    "step": 7,
    "names": ["a", "b"],
}


def test_a_torch_file_is_committed_as_its_state_and_comes_back(chain, empty):
    torch.save(STATE, "model.pt")
    done = chain("commit", "model.pt", "-m", "first", "--step", "7", "--metric", "loss=1.5", "--tag", "t", "--json")
    assert done.code == 0 and done.json["branch"] == "main"
    commit = done.json["commit"]
    assert commit["step"] == 7 and commit["metrics"] == {"loss": 1.5} and commit["message"] == "first"
    assert_same(STATE, cs.open(".chain").checkout("t"), sharing=False)
    assert chain("checkout", "t", "-o", "out.pt").code == 0
    assert_same(STATE, torch.load("out.pt", weights_only=True), sharing=False)


def test_a_file_that_must_be_unpickled_is_refused_with_a_way_out(chain, empty):
    torch.save(torch.nn.Linear(2, 2), "whole.pt")
    done = chain("commit", "whole.pt")
    assert done.code == 1 and "torch.nn.modules.linear.Linear" in done.err and "--as-file" in done.err
    assert chain("commit", "whole.pt", "--as-file").code == 0
    assert cs.open(".chain")["HEAD"].read_file("whole.pt") == Path("whole.pt").read_bytes()


@pytest.mark.parametrize("name", ["x.pt", "x.npy", "x.npz", "x.safetensors"])
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 half", b"no such format at all", b"\x93NUMPY"])
def test_a_broken_file_is_refused_with_a_way_out(chain, empty, name, content):
    Path(name).write_bytes(content)
    done = chain("commit", name)
    assert done.code == 1 and name in done.err and "--as-file" in done.err and "please report" not in done.err


def test_several_files_become_a_dict_by_stem(chain, empty):
    np.savez("arrays.npz", a=np.arange(3), b=np.zeros((2, 2), np.float16))
    np.save("one.npy", np.arange(4))
    assert chain("commit", "arrays.npz", "one.npy").code == 0
    expected = {"arrays": {"a": np.arange(3), "b": np.zeros((2, 2), np.float16)}, "one": np.arange(4)}
    assert_same(expected, cs.open(".chain").checkout(), sharing=False)
    Path("sub").mkdir()
    np.save("sub/one.npy", np.arange(4))
    assert chain("commit", "one.npy", "sub/one.npy").code == 1


def test_an_npz_comes_back_as_the_same_arrays(chain, empty):
    with cs.open(".chain") as repo:
        repo.commit({"a": np.arange(3), "file": np.zeros((2, 2), np.float16), "note": "x"})
    done = chain("checkout", "HEAD", "-o", "out.npz")
    assert done.code == 0 and "1 value" in done.err
    assert chain("commit", "out.npz", "-b", "again").code == 0
    with np.load("out.npz") as found:
        assert_same(
            {"a": np.arange(3), "file": np.zeros((2, 2), np.float16)},
            {name: found[name] for name in found.files},
            sharing=False,
        )


def test_an_unknown_kind_of_file_is_refused_with_the_command_that_stores_it(chain, empty):
    Path("notes.txt").write_text("x")
    done = chain("commit", "notes.txt")
    assert done.code == 1 and "chain commit --as-file notes.txt" in done.err


def folder_tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_a_folder_is_committed_file_by_file_and_comes_back(chain, empty):
    Path("ckpt/deep").mkdir(parents=True)
    Path("ckpt/a.json").write_text("{}")
    Path("ckpt/deep/run.sh").write_text("#!/bin/sh\n")
    Path("ckpt/deep/run.sh").chmod(0o755)
    assert chain("commit", "ckpt").code == 0
    assert chain("checkout", "HEAD", "-o", "out").code == 0
    assert folder_tree(Path("out/ckpt")) == folder_tree(Path("ckpt"))
    assert os.access("out/ckpt/deep/run.sh", os.X_OK) and not os.access("out/ckpt/a.json", os.X_OK)
    assert "ckpt/a.json" in chain("show").out


def test_nothing_new_is_not_committed_unless_asked(chain, empty):
    np.save("one.npy", np.arange(4))
    assert chain("commit", "one.npy").code == 0
    done = chain("commit", "one.npy")
    assert done.code == 1 and "--allow-empty" in done.err
    assert chain("commit", "one.npy", "--allow-empty", "-b", "other").code == 0
    assert [b["name"] for b in chain("branch", "--json").json["branches"]] == ["main", "other"]


def test_a_metric_that_is_no_number_is_wrong_usage(chain, empty):
    np.save("one.npy", np.arange(4))
    for text in ("loss", "loss=", "=1", "loss=x"):
        assert chain("commit", "one.npy", "--metric", text).code == 2


def safetensors(tensors: dict[str, tuple[str, list[int], bytes]], metadata: bool = False, tail: bytes = b"") -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}} if metadata else {}
    data = b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data + tail


@pytest.mark.parametrize("padding", range(5))
def test_safetensors_are_read_wherever_their_header_ends(chain, empty, padding):
    w = torch.arange(6.0).reshape(2, 3)
    tensors = {
        "w" + "x" * padding: ("F32", [2, 3], w.numpy().tobytes()),
        "b": ("BF16", [3], torch.ones(3).bfloat16().view(torch.int16).numpy().tobytes()),
        "none": ("I64", [0], b""),
    }
    Path("m.safetensors").write_bytes(safetensors(tensors, metadata=True))
    assert chain("commit", "m.safetensors").code == 0
    expected = {"w" + "x" * padding: w, "b": torch.ones(3).bfloat16(), "none": torch.zeros(0, dtype=torch.int64)}
    assert_same(expected, cs.open(".chain").checkout(), sharing=False)


@pytest.mark.parametrize(
    "content",
    [
        safetensors({"w": ("F32", [2], bytes(4))}),
        safetensors({"w": ("F32", [1], bytes(4))}, tail=b"more"),
        safetensors({"w": ("F77", [1], bytes(4))}),
        safetensors({"w": ("F32", [-1], bytes(4))}),
        (1 << 60).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        safetensors({"w": ("F32", [1], bytes(4))}).replace(b"[0, 4]", b"[4, 0]"),
        safetensors({"w": ("F32", [1], bytes(4))}).replace(b"[0, 4]", b"[1, 4]"),
    ],
)
def test_hostile_safetensors_are_refused(tmp_path, content):
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match="safetensors"):
        read_safetensors(path)


@pytest.fixture
def stored(empty) -> Path:
    Path("notes.txt").write_text("hello")
    with cs.open(".chain") as repo:
        repo.commit(STATE, files={"notes.txt": "notes.txt"})
    Path("notes.txt").unlink()
    return empty


def test_a_folder_holds_files_arrays_and_values(chain, stored):
    done = chain("checkout", "HEAD", "-o", "out", "--json")
    assert done.code == 0
    assert sorted(file["name"] for file in done.json["files"]) == sorted(folder_tree(Path("out")))
    assert Path("out/notes.txt").read_text() == "hello"
    assert_same(STATE["model"]["w"].numpy(), np.load("out/state/model/w.npy"), sharing=False)
    told = json.loads(Path("out/values.json").read_text())
    assert told["values"] == {"step": 7, "names": ["a", "b"]}
    bits = told["arrays"]["model/b"]
    assert bits["dtype"] == "bfloat16"
    assert_same(
        STATE["model"]["b"], torch.from_numpy(np.load(f"out/{bits['file']}")).view(torch.bfloat16), sharing=False
    )


def test_equal_files_are_left_alone_and_others_replaced(chain, stored):
    chain("checkout", "HEAD", "-o", "out")
    kept = Path("out/notes.txt").stat().st_mtime_ns
    Path("out/values.json").write_text("other")
    files = {
        f["name"]: f["unchanged"] for f in chain("checkout", "HEAD", "-o", "out", "--force", "--json").json["files"]
    }
    assert files.pop("values.json") is False and all(files.values())
    assert Path("out/notes.txt").stat().st_mtime_ns == kept
    assert not list(Path("out").rglob("*.part"))


def test_a_selection_writes_only_what_it_names(chain, stored):
    assert chain("checkout", "HEAD", "-o", "out", "--select", "model/w").code == 0
    assert sorted(folder_tree(Path("out"))) == ["state/model/w.npy", "values.json"]
    assert chain("checkout", "HEAD", "-o", "out.pt", "--select", "model/*").code == 0
    assert_same({"model": STATE["model"]}, torch.load("out.pt", weights_only=True), sharing=False)
    assert chain("checkout", "HEAD", "-o", "none.pt", "--select", "nothing").code == 1
    assert not Path("none.pt").exists()


def test_a_dry_run_writes_nothing(chain, stored):
    before = set(stored.iterdir())
    for form in ("torch", "npz", "dir"):
        done = chain("checkout", "HEAD", "-o", "new/out", "--format", form, "--dry-run")
        assert done.code == 0 and "would be written" in done.out
    assert set(stored.iterdir()) == before


def test_no_key_of_a_state_leaves_the_folder(chain, empty):
    keys = [
        "..",
        ".",
        "/etc",
        "a/b",
        "../../x",
        "",
        "~",
        "\x00",
        "a\nb",
        1,
        "1",
        None,
        ("t", 2),
        b"\xff",
        "%2E%2E",
    ]
    state = {key: np.full(2, n) for n, key in enumerate(keys)}
    with cs.open(".chain") as repo:
        repo.commit({"s": state})
    before = {path for path in empty.parent.rglob("*") if ".chain" not in path.parts}
    assert chain("checkout", "HEAD", "-o", "out").code == 0
    made = {path for path in empty.parent.rglob("*") if ".chain" not in path.parts} - before
    assert all(empty / "out" in (path, *path.parents) for path in made)
    assert sorted(int(np.load(path)[0]) for path in made if path.suffix == ".npy") == list(range(len(keys)))


@pytest.mark.parametrize("name", [("..", "x"), ("",), ("a", ".", "b"), ("/etc/passwd",), ("a/b",), (), ("a\0",)])
def test_a_name_that_would_leave_the_folder_is_refused(name):
    with pytest.raises(InvalidInput):
        check_names([Part(name, 0, lambda stream: None)])


def test_names_that_cannot_both_be_files_are_refused():
    for names in ([("a",), ("a",)], [("a",), ("a", "b")]):
        with pytest.raises(InvalidInput):
            check_names([Part(name, 0, lambda stream: None) for name in names])


def test_links_are_not_followed(tmp_path):
    outside, out = tmp_path / "outside", tmp_path / "out"
    outside.mkdir()
    out.mkdir()
    (outside / "file").write_text("precious")
    (out / "folder").symlink_to(outside)
    (out / "file").symlink_to(outside / "file")
    folder = Folder(out)
    with pytest.raises(InvalidInput, match="folder"):
        folder.put(Part(("folder", "file"), 0, lambda stream: None))
    folder.put(Part(("file",), 0, lambda stream: None))
    assert (outside / "file").read_text() == "precious" and not (out / "file").is_symlink()


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    (tmp_path / "file").write_text("old")

    def fail(stream):
        stream.write(b"half")
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        Folder(tmp_path).put(Part(("file",), 0, fail))
    assert folder_tree(tmp_path) == {"file": b"old"}


def test_array_names_are_one_folder_a_key():
    assert array_name("model/layer.0.weight") == ("state", "model", "layer.0.weight.npy")
    assert array_name("..") == ("state", "%2E..npy")
    assert array_name("") == ("state", "state.npy")
