"""What earlier versions wrote is read: every golden repository opens, whole, and goes on.

`python -m tests.golden.make` makes those of a new format, once.
"""

import hashlib
import json
import lzma
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chainstore.crypto.keys import KeyFile, KeyProvider
from chainstore.errors import SnapshotForgotten
from chainstore.ids import ObjectId
from chainstore.model.change import decode_changes
from chainstore.odb.layout import VERSION
from chainstore.repository import Repository, rebuild
from chainstore.repository import open as open_repository
from chainstore.storage.log import BEGINNING
from tests.golden import make
from tests.golden.describe import described, surroundings
from tests.golden.states import readable_state

FOLDER = Path(__file__).parent
READER = FOLDER.parent / "reader.py"
FORMATS = sorted(FOLDER.glob("format-*"))
READABLE = "simple"  # the branch whose states tests/reader.py knows


@dataclass(frozen=True)
class Golden:
    """One golden repository, unpacked.

    Attributes:
        expected: what it said when it was made.
    """

    path: Path
    key: KeyProvider | None
    expected: dict[str, Any]

    def open(self, *, readonly: bool = False) -> Repository:
        return open_repository(self.path, key=self.key, readonly=readonly, threads=1)

    def check(self, repo: Repository) -> None:
        """Check everything in it, every byte read."""
        found = json.loads(json.dumps(surroundings(repo)))
        for name, value in found.items():
            assert value == self.expected[name], name
        report = repo.verify("data")
        assert report.ok, report.damaged
        for commit in repo.log(all_refs=True):
            id = str(commit.id)
            if id in self.expected["states"]:
                state = repo.checkout(commit)
                assert described(state) == self.expected["states"][id]
                _check_ties(state)
            else:
                assert id in self.expected["marks"]
                with pytest.raises(SnapshotForgotten):
                    repo.checkout(commit)
        with_file = repo.snapshot("with-file")
        assert with_file.read_file("tokenizer.json") == b'{"tokens": ["a", "b"]}'


def _check_ties(state: dict[object, Any]) -> None:
    if "tied" in state:
        assert state["tied"][0] is state["tied"][1]
        base, part, others = state["view"]
        assert np.shares_memory(base, part) and np.shares_memory(base, others)


def unpack(folder: Path, kind: str, target: Path) -> Golden:
    """Return a fresh copy of a golden repository."""
    with lzma.open(folder / f"{kind}.tar.xz") as plain, tarfile.open(fileobj=plain) as tar:
        tar.extractall(target, filter="data")
    expected = json.loads((folder / "expected.json").read_text())[kind]
    key = shutil.copy(folder / "key", target / "key")
    return Golden(target / kind, KeyFile(key) if expected["encrypted"] else None, expected)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Golden repositories as this version makes them."""
    folder = tmp_path_factory.mktemp("golden") / "made"
    make.make(folder)
    return folder


def folders() -> list[str]:
    return ["made", *(folder.name for folder in FORMATS)]


@pytest.fixture(params=folders())
def folder(request: pytest.FixtureRequest) -> Path:
    name: str = request.param
    return request.getfixturevalue("made") if name == "made" else FOLDER / name  # type: ignore[no-any-return]


@pytest.fixture(params=make.KINDS)
def golden(folder: Path, request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    return unpack(folder, request.param, tmp_path)


def test_the_format_of_this_version_has_its_golden_repositories() -> None:
    assert f"format-{VERSION}" in folders(), "python -m tests.golden.make"


@pytest.mark.parametrize("name", [folder.name for folder in FORMATS])
def test_golden_files_are_those_that_were_made(name: str) -> None:
    lines = (FOLDER / name / "SHA256SUMS").read_text().splitlines()
    sums = {file: digits for digits, file in (line.split("  ") for line in lines)}
    assert sums == {file.name: make.hash_of(file) for file in (FOLDER / name).iterdir() if file.name != "SHA256SUMS"}


def test_golden_repositories_are_small_and_never_made_again(made: Path) -> None:
    for file in made.iterdir():
        assert file.stat().st_size <= 200_000, file
    before = {file: hashlib.sha256(file.read_bytes()).digest() for file in made.iterdir()}
    with pytest.raises(FileExistsError):
        make.make(made)
    assert before == {file: hashlib.sha256(file.read_bytes()).digest() for file in made.iterdir()}


NODES = {*range(1, 10), 16, 17, 18, 19, 20, 25, 32, 33, 34}  # of docs/format.md: all but what few builds of torch make
CHANGES = {*("SetRef", "PackGrown", "SetConfig", "Mark", "Unmark", "Swept", "Dead", "SetKeyring", "Checkpoint")}


def test_golden_repositories_hold_entries_and_changes_of_every_kind(made: Path, tmp_path: Path) -> None:
    nodes, changes, segments = set(), set(), set()
    for kind in make.KINDS:
        (tmp_path / kind).mkdir()
        with unpack(made, kind, tmp_path / kind).open(readonly=True) as repo:
            for position, line in repo._db.log.after(BEGINNING):
                segments.add(position.segment)
                changes |= {type(each).__name__ for each in decode_changes(repo._db.sealer.open_line(line))[1]}
            for commit in repo.log("main", max_count=1):
                nodes |= {entry.node[0] for entry in repo.snapshot(commit).manifest.entries}  # type: ignore[index]
            with repo._db.view() as view:
                packs = [pack for _, pack in view.packs()]
    assert nodes >= NODES and changes >= CHANGES and len(segments) > 1
    assert any(pack.contents for pack in packs) and any(pack.dead for pack in packs)


def test_a_golden_repository_is_read_as_it_was(golden: Golden) -> None:
    with golden.open(readonly=True) as repo:
        golden.check(repo)


def test_a_golden_repository_goes_on(golden: Golden) -> None:
    with golden.open() as repo:
        golden.check(repo)
        tip = repo.resolve("main")
        commit = repo.commit(readable_state(9), "later")
        assert commit.parents == (tip,) and described(repo.checkout(commit)) == described(readable_state(9))
        repo.gc()
        assert repo.verify("data").ok
        kept = [id for id in golden.expected["states"] if ObjectId.parse(id) in {each.id for each in repo.log("main")}]
        for id in kept:
            assert described(repo.checkout(ObjectId.parse(id))) == golden.expected["states"][id]


def _lose_index(path: Path) -> None:
    shutil.rmtree(path / "index")
    (path / "index.owner").unlink()


def _lose_small_files(path: Path) -> None:
    _lose_index(path)
    for name in ("format", "keyring"):
        (path / name).unlink(missing_ok=True)
    shutil.rmtree(path / "leases")


@pytest.mark.parametrize("lose", [_lose_index, _lose_small_files])
def test_the_index_of_a_golden_repository_is_rebuilt(golden: Golden, lose: Callable[[Path], None]) -> None:
    lose(golden.path)
    report = rebuild(golden.path, key=golden.key)
    assert not report.problems and not report.lost_lines and not report.moved
    with golden.open(readonly=True) as repo:
        golden.check(repo)


def test_a_golden_repository_opens_with_its_passphrase(folder: Path, tmp_path: Path) -> None:
    golden = unpack(folder, "sealed", tmp_path)
    with open_repository(golden.path, key=make.PASSPHRASE, readonly=True) as repo:
        assert repo.branches().keys() == golden.expected["branches"].keys()


@pytest.mark.parametrize("kind", ["sealed", "collected"])
def test_the_reader_made_from_the_document_reads_a_golden_repository(folder: Path, tmp_path: Path, kind: str) -> None:
    golden = unpack(folder, kind, tmp_path)
    out = tmp_path / "out.npz"
    command = [sys.executable, READER, golden.path, tmp_path / "key", out, f"heads/{READABLE}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["commit"] == golden.expected["branches"][READABLE]
    state = readable_state(told["step"])
    with np.load(out) as found:
        for name in ("weight", "counted", "rare", "mask", "zeros", "nothing"):
            array = state[name]
            assert isinstance(array, np.ndarray)
            assert (found[name].dtype, found[name].tobytes()) == (array.dtype, array.tobytes()), name
