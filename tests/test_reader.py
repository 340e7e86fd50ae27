"""docs/format.md is enough: 200 lines made from it read an encrypted repository without package and index."""

import ast
import json
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import chainstore as cs

READER = Path(__file__).with_name("reader.py")
ALLOWED = {*sys.stdlib_module_names, "blake3", "cbor2", "cryptography", "numpy", "zstandard"}
ALONE = """
import runpy, sys
sys.modules["chainstore"] = sys.modules["lmdb"] = sys.modules["torch"] = None  # to import them is an error
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def read(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the reader in a process of its own, in which none of ours can be imported."""
    command = [sys.executable, "-I", "-c", ALONE, str(READER), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@dataclass(frozen=True)
class Written:
    """A repository of two commits on `main` and one on `other`, written by a script, and what is in it."""

    root: Path
    key: Path
    arrays: dict[str, np.ndarray]
    first: np.ndarray
    commit: str


def training_state() -> dict[str, object]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(300, 1000), torch.nn.Linear(1000, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 300)).square().mean().backward()
    optimizer.step()
    sparse = torch.zeros(50_000)
    sparse[::97] = torch.randn(516)
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "half": torch.randn(5000).bfloat16(),
        "turned": torch.randn(60, 90).t(),
        "shown often": torch.randn(1, 7).expand(5, 7),
        "sparse": sparse,
        "ints": torch.arange(9000),
        "mask": torch.rand(40) < 0.5,
        "of numpy": np.linspace(0, 1, 77).reshape(7, 11),
        "nothing": torch.zeros(0, 3),
        "lr": 0.5,
        "names": ["a", "b"],
    }


def arrays_in(state: object, path: str = "") -> dict[str, np.ndarray]:
    """Return the arrays of a state by path, those of bfloat16 as their bits."""
    if isinstance(state, torch.Tensor):
        state = state.view(torch.uint16) if state.dtype is torch.bfloat16 else state
        return {path: state.detach().numpy()}
    if isinstance(state, np.ndarray):
        return {path: state}
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list | tuple) else ()
    return {name: one for k, v in items for name, one in arrays_in(v, f"{path}/{k}".lstrip("/")).items()}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("reader")
    key = folder / "key"
    key.write_text("2e" * 32)
    state = training_state()
    first = np.arange(70_000, dtype=np.float32)
    with cs.init(folder / "repository", key=cs.KeyFile(key)) as repo:
        repo.add_key(cs.Passphrase("a second slot"))
        repo.commit({"first": first, "deep": [first[:5].copy(), (first[5:9].copy(),)]}, "first", step=1)
        repo.branch("other")
        commit = repo.commit(state, "second", step=2)
    return Written(folder / "repository", key, arrays_in(state), first, str(commit.id))


def test_the_reader_has_at_most_200_lines_and_imports_nothing_of_ours():
    lines = READER.read_text().splitlines()
    assert len(lines) <= 200 and max(map(len, lines)) <= 120
    for node in ast.walk(ast.parse(READER.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in getattr(node, "names", [])]
        if isinstance(node, ast.Import | ast.ImportFrom):
            assert {str(name).partition(".")[0] for name in names} <= ALLOWED, names


def test_the_reader_gets_every_tensor_of_the_newest_commit_bit_for_bit(written: Written, tmp_path: Path):
    done = read(written.root, written.key, tmp_path / "out.npz")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["commit"], told["step"], told["message"]) == (written.commit, 2, "second")
    assert told["values"]["lr"] == [1, struct.pack("<d", 0.5).hex()]
    with np.load(tmp_path / "out.npz") as found:
        assert set(found) == set(written.arrays)
        for name, array in written.arrays.items():
            assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
            assert found[name].tobytes() == array.tobytes(), name


def test_the_reader_finds_an_older_commit_by_its_branch(written: Written, tmp_path: Path):
    done = read(written.root, written.key, tmp_path / "out.npz", "heads/other")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["message"] == "first"
    with np.load(tmp_path / "out.npz") as found:
        assert set(found) == {"first", "deep/0", "deep/1/0"}
        assert found["first"].tobytes() == written.first.tobytes()
        assert found["deep/1/0"].tobytes() == written.first[5:9].tobytes()


def test_the_reader_needs_no_index_and_the_right_key(written: Written, tmp_path: Path):
    wrong = tmp_path / "wrong"
    wrong.write_text("2f" * 32)
    done = read(written.root, wrong, tmp_path / "out.npz")
    assert done.returncode and "the key opens no slot" in done.stderr and not (tmp_path / "out.npz").exists()
    (written.root / "index").rename(tmp_path / "index")
    try:
        assert read(written.root, written.key, tmp_path / "out.npz").returncode == 0
    finally:
        (tmp_path / "index").rename(written.root / "index")


def test_the_reader_refuses_a_flipped_bit(written: Written, tmp_path: Path):
    (pack,) = (written.root / "packs").glob("*/*")
    whole = pack.read_bytes()
    pack.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])  # in the payload of the first record
    try:
        done = read(written.root, written.key, tmp_path / "out.npz", "heads/other")
        assert done.returncode and not (tmp_path / "out.npz").exists()
    finally:
        pack.write_bytes(whole)


def test_nothing_of_ours_can_be_imported_where_the_reader_runs(tmp_path: Path):
    probe = tmp_path / "probe.py"
    probe.write_text("import chainstore\n")
    done = subprocess.run([sys.executable, "-I", "-c", ALONE, str(probe)], capture_output=True, text=True, check=False)
    assert done.returncode and "ModuleNotFoundError" in done.stderr


def test_the_reader_undoes_differences_of_every_kind(tmp_path: Path):
    """Flags differ in their bits; numbers of 1, 2, 4 and 8 bytes are subtracted, and all are read through versions."""
    source = np.random.default_rng(4)
    state = {
        "flags": source.random(40_000) < 0.5,
        "bytes": source.integers(0, 256, 40_000, np.uint8),
        "short": source.integers(0, 1 << 16, 40_001).astype(np.uint16),
        "float": source.normal(0, 1, 40_000).astype(np.float32),
        "double": source.normal(0, 1, 20_001),
    }
    key = tmp_path / "key"
    key.write_text("2e" * 32)
    with cs.init(tmp_path / "repository", key=cs.KeyFile(key), codec="small") as repo:
        for version in range(4):
            for array in state.values():
                array[version::50] = array[version::50] ^ True if array.dtype == bool else array[version::50] + 3
            done = repo.commit(state)
            assert version == 0 or done.stats.delta_bytes > sum(array.nbytes for array in state.values()) / 2
    packs = b"".join(pack.read_bytes() for pack in (tmp_path / "repository" / "packs").glob("??/*"))
    records = packs.split(b"\x89CSREC\r\n")[1:]
    assert {record[8] for record in records} >= {3, 4}  # the first codec of each, section 7
    read_it = read(tmp_path / "repository", key, tmp_path / "out.npz")
    assert read_it.returncode == 0, read_it.stderr
    with np.load(tmp_path / "out.npz") as found:
        assert all(found[name].tobytes() == array.tobytes() for name, array in state.items())


def test_the_reader_reads_pairs_of_digits(tmp_path: Path):
    source = np.random.default_rng(5)
    weights = source.integers(0, 1 << 16, 400_000).astype(np.uint16)
    key, out = tmp_path / "key", tmp_path / "out.npz"
    key.write_text("2e" * 32)
    with cs.init(tmp_path / "repository", key=cs.KeyFile(key), codec="small") as repo:
        repo.commit({"w": weights})
        moved = source.random(weights.size) < 0.1
        weights += np.where(moved, source.choice(np.array([1, 65535, 1, 65535, 3], np.uint16), weights.size), 0)
        repo.commit({"w": weights})
    read_it = read(tmp_path / "repository", key, out)
    assert read_it.returncode == 0, read_it.stderr
    with np.load(out) as found:
        assert found["w"].tobytes() == weights.tobytes()
    blind = tmp_path / "blind.py"  # the same, without them
    blind.write_text(READER.read_text().replace("if method == 3:", "assert method == 3\n        if True:"))
    command = [sys.executable, "-I", "-c", ALONE, str(blind), str(tmp_path / "repository"), str(key), str(out)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode and "assert method == 3" in refused.stderr
