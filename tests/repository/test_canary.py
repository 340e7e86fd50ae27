"""Nothing that an encrypted repository stores can be read anywhere without a key."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import chainstore as cs
from chainstore.crypto.keys import Argon2Cost
from chainstore.errors import Denied, WrongKey
from chainstore.repository import rebuild
from tests.repository.conftest import noise, script

WINDOW = 16

MAKE = """
import threading
os.environ["TMPDIR"] = sys.argv[2]
from chainstore.crypto.keys import Argon2Cost
canary = np.fromfile(sys.argv[3], np.uint8)
repo = cs.open(root, create=True, observer=print)
state = {
    "cnryLayerName": canary,
    "cnryNested": {"cnryInner": canary[::-1].copy(), "cnryText": "cnryPlainText", "lr": 0.123456789012345},
    "cnryFloats": np.sqrt(canary + 0.1),
    "tiny": canary[:64].copy(),
    "zeros": np.zeros(100_000),
}
for n in range(4):
    repo.commit(state, "cnryMessage %d" % n, step=n, metrics={"cnryMetric": 0.987654321098765},
                meta={"cnryMeta": "cnryMetaValue"}, tags=["cnryTag%d" % n], codec=["auto", "none", "fast", "small"][n],
                files={"cnryFile.json": sys.argv[4]})
    state["more%d" % n] = canary[n:].copy()
repo.branch("cnryBranch")
repo.commit(state, "cnryOther", branch="cnryBranch2")
repo.switch("cnryBranch")
repo.reset("cnryBranch", "main~1")
repo.delete_ref("cnryTag0")
with repo.writer(message="cnryWriter") as w:
    w.add("cnryAdded/tensor", canary)
try:
    with repo.writer(message="cnryAborted") as w:
        w["cnryLost"] = canary[5:].copy()
        raise KeyError("cnryError")
except KeyError:
    pass
repo.add_key(cs.Passphrase("cnryPassphrase", Argon2Cost(64, 1, 1)))
repo.rebuild_index()
repo.verify("data")
assert (repo.checkout("main")["cnryLayerName"] == canary).all()
db = repo._db
bundle = db.sealer._bundle
for secret in [bundle.id, bundle.name, *bundle.data.values(), *bundle.meta.values()]:
    sys.stderr.write("SECRET " + secret.hex() + "\\n")
"""

LOOK = """
import traceback
for open_it in (cs.open, lambda path: cs.open(path, readonly=True), lambda path: cs.open(path, create=True)):
    try:
        repo = open_it(root)
        for commit in repo.log():
            print(commit, commit.message)
        sys.exit("opened without a key")
    except errors.KeyRequired:
        traceback.print_exc()
"""


class Haystack:
    """Everything a repository leaves behind: its files, temporary files, shared memory, what was printed."""

    skipped: ClassVar[frozenset[str]] = frozenset({"user.key"})

    def __init__(self, *places: Path) -> None:
        self.parts: dict[str, bytes] = {}
        for place in places:
            for path in [place, *place.rglob("*")]:
                self.parts[f"the name of {path}"] = os.fsencode(path.name)
                if path.is_file() and path.name not in self.skipped:
                    self.parts[str(path)] = path.read_bytes()

    def find(self, needle: bytes) -> list[str]:
        return [name for name, data in self.parts.items() if needle in data]


def shared_memory() -> set[Path]:
    return set(Path("/dev/shm").iterdir())


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Haystack, list[bytes], Path]:
    """Make a repository in a process of its own; return its path, what it left, its keys, and the user's settings."""
    base = tmp_path_factory.mktemp("canary")
    root, temporary, settings = base / "r", base / "tmp", base / "settings"
    temporary.mkdir()
    noise(77, 64 << 10).tofile(base / "canary.bin")
    (base / "plain.json").write_text('{"cnryFileContent": "cnryFileText"}')
    before = shared_memory()
    environment = {**os.environ, "CHAIN_CONFIG_DIR": str(settings), "TMPDIR": str(temporary)}
    command = [
        sys.executable,
        "-c",
        script(MAKE),
        str(root),
        str(temporary),
        str(base / "canary.bin"),
        str(base / "plain.json"),
    ]
    done = subprocess.run(command, capture_output=True, env=environment, timeout=60)
    told, _, secrets = done.stderr.partition(b"SECRET")
    assert done.returncode == 0, done.stderr.decode()
    hay = Haystack(root, temporary, settings, *(shared_memory() - before))
    hay.parts["stdout"], hay.parts["stderr"] = done.stdout, told
    keys = [bytes.fromhex(text) for text in re.findall(r"[0-9a-f]{64}", secrets.decode())]
    assert len(keys) >= 4
    return root, hay, keys, settings


def test_no_window_of_a_tensor_is_found(left_behind: tuple[Path, Haystack, list[bytes], Path]) -> None:
    _, hay, _, _ = left_behind
    canary = noise(77, 64 << 10).tobytes()
    forms = {
        "as it is": canary,
        "reversed": canary[::-1],
        "as doubles": np.sqrt(np.frombuffer(canary, np.uint8) + 0.1).tobytes(),
    }
    everything = b"\0".join(hay.parts.values())
    assert len(everything) > 500_000
    windows = {everything[at : at + WINDOW] for at in range(len(everything) - WINDOW)}
    for form, data in forms.items():
        hits = [at for at in range(len(data) - WINDOW) if data[at : at + WINDOW] in windows]
        assert not [at for at in hits if len(set(data[at : at + WINDOW])) > 4], form


def test_the_same_search_finds_them_where_nothing_is_encrypted(tmp_path: Path) -> None:
    with cs.init(tmp_path / "r", encrypt=False, codec="none") as repo:
        repo.commit(
            {"cnryName": noise(77, 64 << 10)}, "cnryMessage", branch="cnryBranch", metrics={"m": 0.987654321098765}
        )
    hay = Haystack(tmp_path / "r")
    for needle in (noise(77, 64 << 10).tobytes()[4_000:4_016], b"cnryName", b"cnryMessage", b"cnryBranch"):
        assert hay.find(needle)
    assert hay.find(np.float64(0.987654321098765).tobytes())


@pytest.mark.parametrize("skip", range(4))
def test_no_plane_of_a_tensor_is_found(left_behind: tuple[Path, Haystack, list[bytes], Path], skip: int) -> None:
    _, hay, _, _ = left_behind
    plane = np.frombuffer(noise(77, 64 << 10).tobytes(), np.uint8)[skip::4].tobytes()
    for at in range(0, len(plane) - WINDOW, 997):
        assert hay.find(plane[at : at + WINDOW]) == []


def test_no_name_or_text_is_found(left_behind: tuple[Path, Haystack, list[bytes], Path]) -> None:
    _, hay, _, _ = left_behind
    for name, data in hay.parts.items():
        assert b"cnry" not in data.lower(), name
        assert "cnry".encode("utf-16-le") not in data, name


def test_no_value_is_found(left_behind: tuple[Path, Haystack, list[bytes], Path]) -> None:
    _, hay, _, _ = left_behind
    for value in (0.987654321098765, 0.123456789012345):
        for form in (np.float64(value).tobytes(), np.float64(value).tobytes()[::-1], repr(value)[:12].encode()):
            assert hay.find(form) == []


def test_no_key_is_found(left_behind: tuple[Path, Haystack, list[bytes], Path]) -> None:
    root, hay, keys, settings = left_behind
    user = (settings / "user.key").read_bytes()
    assert len(user) == 32
    for key in [*keys, user]:
        for form in (key, key[::-1], key.hex().encode(), key[:16], key[16:]):
            assert hay.find(form) == []
    assert (settings / "user.key").stat().st_mode & 0o777 == 0o600
    assert not list(root.rglob("user.key"))


def test_what_is_said_without_a_key_shows_nothing(left_behind: tuple[Path, Haystack, list[bytes], Path]) -> None:
    root, _, keys, _ = left_behind
    environment = {**os.environ, "CHAIN_CONFIG_DIR": "/nowhere"}
    look = [sys.executable, "-c", script(LOOK), str(root)]
    commands = [
        look,
        *([sys.executable, "-m", "chainstore.cli.main", "-C", str(root), name] for name in ("log", "branch", "tag")),
    ]
    for command in commands:
        done = subprocess.run(command, capture_output=True, env=environment, timeout=60, stdin=subprocess.DEVNULL)
        said = done.stdout + done.stderr
        if command is look:
            assert done.returncode == 0, said.decode()
            assert b"looked at" not in done.stdout
        else:
            assert done.returncode == 12, said.decode()
        assert b"cnry" not in said.lower()
        assert not any(key in said or key.hex().encode() in said for key in keys)


def test_rotten_bytes_are_not_shown_in_errors(tmp_path: Path) -> None:
    with cs.open(tmp_path / "r", create=True) as repo:
        repo.commit({"cnryName": noise(1, 100_000), "text": "cnryText"}, "cnryMessage")
    for pack in (tmp_path / "r" / "packs").rglob("*"):
        if pack.is_file():
            data = bytearray(pack.read_bytes())
            data[1000] ^= 1
            pack.write_bytes(data)
    with cs.open(tmp_path / "r") as repo, pytest.raises(Exception) as caught:
        repo.checkout()
    assert "cnryMessage" not in str(caught.value) and "cnryText" not in str(caught.value)


def test_secrets_are_not_in_what_objects_print(tmp_path: Path) -> None:
    key = cs.Passphrase("cnrySecret", Argon2Cost(64, 1, 1))
    with cs.init(tmp_path / "r", key=key) as repo:
        handle = repo._handle
        shown = f"{repo!r} {handle.settings!r} {handle.core!r} {key!r} {key} {repo.key_slots()} {repo.key_origin}"
        bundle = repo._db.sealer._bundle
        assert bundle is not None
        shown += f"{bundle!r} {repo._db.sealer!r}"
        assert "cnrySecret" not in shown
        assert bundle.id.hex() not in shown and repr(bundle.id) not in shown


def test_a_removed_key_opens_no_file_that_is_left(tmp_path: Path) -> None:
    root, cheap = tmp_path / "r", Argon2Cost(64, 1, 1)
    with cs.init(root, key=cs.Passphrase("owner", cheap)) as repo:
        repo.add_key(cs.Passphrase("leaver", cheap), label="leaver")
        (slot,) = [text.split()[1] for text in repo.key_slots() if "leaver" in text]
        repo.remove_key(slot)
    assert not Haystack(root).find(bytes.fromhex(slot))
    assert not Haystack(root).find(b"leaver")
    for broken in ("nothing", "keyring"):
        if broken != "nothing":
            (root / broken).write_bytes(b"")
        for way in (cs.open, rebuild):
            with pytest.raises(WrongKey):
                way(root, key=cs.Passphrase("leaver", cheap))
    with pytest.raises(Denied):
        cs.open(root)
