"""What opening a repository says when it cannot, and who shares what when it can."""

import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chainstore as cs
from chainstore.crypto.keys import Argon2Cost, generate_key_file
from chainstore.errors import (
    AlreadyExists,
    ChainError,
    ConfigError,
    Damaged,
    FormatTooNew,
    InvalidInput,
    KeyRequired,
    Malformed,
    NotEncrypted,
    RepositoryNotFound,
    WrongKey,
    WrongRepository,
)
from chainstore.model.frame import crc32c
from chainstore.observe import Notice
from chainstore.odb.layout import Format, Layout
from chainstore.odb.opening import create_local
from chainstore.odb.record import SUITE_NONE, Sealer
from chainstore.repository import rebuild
from chainstore.repository.settings import surroundings
from tests.repository.conftest import noise

CHEAP = Argon2Cost(memory_kib=64, passes=1, lanes=1)
STATE = {"w": np.arange(4)}


def passphrase(text: str) -> cs.Passphrase:
    return cs.Passphrase(text, CHEAP)


def key_file(path: Path) -> cs.KeyFile:
    generate_key_file(path)
    return cs.KeyFile(path)


def made(path: Path, **how: Any) -> Path:
    """Make a repository with one commit and close it."""
    with cs.init(path, **how) as repo:
        repo.commit(STATE, "first")
    return path


# ---- keys


def test_a_wrong_passphrase_is_told_from_the_right_one(tmp_path: Path) -> None:
    made(tmp_path / "r", key=passphrase("correct horse"))
    with pytest.raises(WrongKey) as caught:
        cs.open(tmp_path / "r", key=passphrase("battery staple"))
    assert caught.value.exit_code == 12
    assert "passphrase" in str(caught.value)
    assert "battery staple" not in f"{caught.value} {caught.value.hint} {caught.value!r}"
    with cs.open(tmp_path / "r", key=passphrase("correct horse")) as repo:
        assert repo.head is not None


def test_a_wrong_key_file_is_named_and_so_is_the_key_that_is_wanted(tmp_path: Path) -> None:
    made(tmp_path / "r", key=key_file(tmp_path / "right"))
    slot = cs.open(tmp_path / "r", key=cs.KeyFile(tmp_path / "right")).key_slots()[0]
    cs.open(tmp_path / "r", key=cs.KeyFile(tmp_path / "right")).close()
    with pytest.raises(WrongKey) as caught:
        cs.open(tmp_path / "r", key=key_file(tmp_path / "wrong"))
    assert str(tmp_path / "wrong") in str(caught.value)
    assert slot in str(caught.value)


def test_a_key_of_another_kind_is_told_what_would_open_it(tmp_path: Path) -> None:
    made(tmp_path / "r", key=passphrase("p"))
    with pytest.raises(WrongKey, match="passphrase"):
        cs.open(tmp_path / "r", key=key_file(tmp_path / "k"))


def test_a_missing_key_says_where_it_was_looked_for(tmp_path: Path, own_settings: Path) -> None:
    made(tmp_path / "r", key=passphrase("p"))
    with pytest.raises(KeyRequired) as caught:
        cs.open(tmp_path / "r")
    assert caught.value.exit_code == 12
    told = f"{caught.value} {caught.value.hint}"
    for place in ("key=", "--key-file", "CHAIN_KEY_FILE", "CHAIN_KEY_COMMAND", "CHAIN_PASSPHRASE"):
        assert place in told
    assert str(own_settings / "user.key") in told
    assert str(tmp_path / "r" / "user.key") in told


def test_a_key_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    made(tmp_path / "r", key=key_file(tmp_path / "k"))
    with pytest.raises(KeyRequired, match=r"gone\.key"):
        cs.open(tmp_path / "r", key=cs.KeyFile(tmp_path / "gone.key"))


def test_the_users_key_that_was_lost_is_a_missing_key(tmp_path: Path, own_settings: Path) -> None:
    made(tmp_path / "r")
    (own_settings / "user.key").unlink()
    with pytest.raises(KeyRequired, match="key file"):
        cs.open(tmp_path / "r")


def test_another_users_key_is_a_wrong_key(tmp_path: Path, own_settings: Path) -> None:
    made(tmp_path / "r")
    (own_settings / "user.key").write_bytes(os.urandom(32))
    with pytest.raises(WrongKey) as caught:
        cs.open(tmp_path / "r")
    assert str(own_settings / "user.key") in str(caught.value)


def test_the_environment_names_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "r", key=key_file(tmp_path / "k"))
    monkeypatch.setenv("CHAIN_KEY_FILE", str(tmp_path / "k"))
    with cs.open(tmp_path / "r") as repo:
        assert "CHAIN_KEY_FILE" in repo.key_origin
    key_file(tmp_path / "other")
    monkeypatch.setenv("CHAIN_KEY_FILE", str(tmp_path / "other"))
    with pytest.raises(WrongKey, match="other"):
        cs.open(tmp_path / "r")
    monkeypatch.setenv("CHAIN_PASSPHRASE", "p")
    with pytest.raises(ConfigError, match="at once"):
        cs.open(tmp_path / "r")


def test_a_key_that_is_given_is_checked_even_where_the_repository_is_open_already(tmp_path: Path) -> None:
    with cs.init(tmp_path / "r", key=passphrase("p")), pytest.raises(WrongKey):
        cs.open(tmp_path / "r", key=passphrase("q"))


def test_without_a_home_that_lasts_the_key_goes_into_the_repository_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Path(f"/dev/shm/chainstore-test-{os.getpid()}")
    monkeypatch.setenv("CHAIN_CONFIG_DIR", str(home / "config"))
    heard: list[object] = []
    with cs.init(tmp_path / "r", observer=heard.append) as repo:
        repo.commit(STATE)
        assert str(tmp_path / "r" / "user.key") in repo.key_origin
    notices = [notice for notice in heard if isinstance(notice, Notice)]
    assert [notice.code for notice in notices] == ["key-in-repository"]
    assert "tmpfs" in notices[0].text and "Whoever can read that folder" in notices[0].text
    assert (tmp_path / "r" / "user.key").stat().st_mode & 0o777 == 0o600
    assert not home.exists()
    monkeypatch.setenv("CHAIN_CONFIG_DIR", str(tmp_path / "another machine"))
    with cs.open(tmp_path / "r") as repo:
        assert repo.head is not None


def test_a_key_left_in_the_repository_does_not_hide_the_users_key(tmp_path: Path, own_settings: Path) -> None:
    made(tmp_path / "r")
    generate_key_file(tmp_path / "r" / "user.key")
    with cs.open(tmp_path / "r") as repo:
        assert str(own_settings / "user.key") in repo.key_origin


# ---- no downgrade


def test_an_unencrypted_repository_is_refused_where_a_key_was_given(tmp_path: Path) -> None:
    made(tmp_path / "r", encrypt=False)
    with pytest.raises(NotEncrypted) as caught:
        cs.open(tmp_path / "r", key=passphrase("p"))
    assert caught.value.exit_code == 12
    with cs.open(tmp_path / "r") as repo:
        assert not repo.encrypted
        with pytest.raises(NotEncrypted):
            cs.open(tmp_path / "r", key=passphrase("p"))


def test_a_key_in_the_environment_counts_as_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "r", encrypt=False)
    monkeypatch.setenv("CHAIN_PASSPHRASE", "p")
    with pytest.raises(NotEncrypted, match="CHAIN_PASSPHRASE"):
        cs.open(tmp_path / "r")


def test_a_key_for_an_unencrypted_repository_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        cs.init(tmp_path / "r", encrypt=False, key=passphrase("p"))
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("key_slots_removed", [False, True])
def test_an_unencrypted_format_over_an_encrypted_one_is_refused(tmp_path: Path, key_slots_removed: bool) -> None:
    root = made(tmp_path / "r")
    fake = Format(Layout(root).read_format().repo_id, SUITE_NONE).to_bytes()
    for name in ("format", "format.bak"):
        (root / name).write_bytes(fake)
    if key_slots_removed:
        (root / "keyring").unlink()
        (root / "keyring.bak").unlink()
    for open_it in (cs.open, lambda path: cs.open(path, readonly=True), rebuild):
        with pytest.raises((NotEncrypted, Damaged)):
            open_it(root)


def test_the_format_of_an_unencrypted_repository_over_an_encrypted_one_is_refused(tmp_path: Path) -> None:
    root, other = made(tmp_path / "r"), made(tmp_path / "plain", encrypt=False)
    for name in ("format", "format.bak"):
        shutil.copy(other / name, root / name)
        (root / name.replace("format", "keyring")).unlink()
    for open_it in (cs.open, lambda path: cs.open(path, readonly=True)):
        with pytest.raises((WrongRepository, Damaged)):
            open_it(root)


# ---- not a repository


def test_no_repository_says_which_command_makes_one(tmp_path: Path) -> None:
    with pytest.raises(RepositoryNotFound) as caught:
        cs.open(tmp_path / "nothing")
    assert caught.value.exit_code == 10
    assert f"chain init {tmp_path / 'nothing'}" in caught.value.hint
    assert isinstance(caught.value, LookupError)


def test_an_empty_directory_is_no_repository_and_stays_empty(tmp_path: Path) -> None:
    for readonly in (False, True):
        with pytest.raises(RepositoryNotFound):
            cs.open(tmp_path, readonly=readonly)
    with pytest.raises(RepositoryNotFound):
        rebuild(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_repository_and_none_is_made_of_it(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("text")
    with pytest.raises(RepositoryNotFound):
        cs.open(tmp_path / "f")
    for path in (tmp_path / "f", tmp_path / "f" / "below"):
        with pytest.raises(ChainError):
            cs.open(path, create=True)
        with pytest.raises(ChainError):
            cs.init(path)
    assert (tmp_path / "f").read_text() == "text"


GARBAGE = {
    "nothing": b"",
    "zeros": bytes(4096),
    "noise": noise(1, 300).tobytes(),
    "deep": b"[" * 200_000,
    "a list": b"[]",
    "a number": b"7",
    "an object": b"{}",
    "long": b" " * (2 << 20),
}


@pytest.mark.parametrize("name", ["format", "keyring", "index.owner"])
@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_in_the_small_files_is_damage(tmp_path: Path, name: str, garbage: str) -> None:
    root = made(tmp_path / "r")
    for file in root.glob(name + "*"):
        file.write_bytes(GARBAGE[garbage])
    for readonly in (False, True):
        with pytest.raises(Damaged):
            cs.open(root, readonly=readonly)


@pytest.mark.parametrize("name", ["format", "keyring"])
def test_one_copy_of_a_small_file_is_enough(tmp_path: Path, name: str) -> None:
    root = made(tmp_path / "r")
    for broken, other in ((name, f"{name}.bak"), (f"{name}.bak", name)):
        good = (root / other).read_bytes()
        (root / broken).write_bytes(b"garbage")
        cs.open(root).close()
        (root / broken).unlink()
        cs.open(root).close()
        (root / broken).write_bytes(good)


def test_an_owner_that_points_elsewhere_is_not_followed(tmp_path: Path) -> None:
    root, other = made(tmp_path / "r"), made(tmp_path / "other")
    stranger = next((other / "index").iterdir())
    owner = json.loads((root / "index.owner").read_text())
    for uuid in (f"../../other/index/{stranger.name}", str(stranger), "", "..", 5):
        (root / "index.owner").write_text(json.dumps({**owner, "uuid": uuid}))
        with pytest.raises(Damaged):
            cs.open(root)


def test_a_directory_of_garbage_is_damage(tmp_path: Path) -> None:
    root = made(tmp_path / "r")
    for number, file in enumerate(sorted(path for path in root.rglob("*") if path.is_file())):
        file.write_bytes(noise(number, file.stat().st_size or 10).tobytes())
    for open_it in (cs.open, lambda path: cs.open(path, readonly=True), rebuild):
        with pytest.raises(Damaged):
            open_it(root)


@pytest.mark.parametrize("name", ["log", "packs", "leases", "index"])
def test_a_folder_that_is_missing_is_an_error_of_ours(tmp_path: Path, name: str) -> None:
    root = made(tmp_path / "r")
    shutil.rmtree(root / name)
    for readonly in (False, True):
        try:
            with cs.open(root, readonly=readonly) as repo:
                if not readonly:
                    repo.commit({"a": noise(1, 50_000)})
                repo.checkout()
        except ChainError:
            continue
        assert name in ("leases", "packs")


# ---- newer versions


def with_extension(root: Path, name: str, read: bool, write: bool, gc: bool) -> Path:
    """Make a repository that uses an extension which only later versions know."""
    layout = Layout(root)
    layout.create()
    format = Format(os.urandom(16), SUITE_NONE, extensions=((name, (read, write, gc)),))
    create_local(
        layout, format, Sealer(format.repo_id, None, os.urandom), 0, surroundings(), head="heads/main", config={}
    ).close()
    layout.write_format(format)
    return root


def test_an_extension_that_forbids_reading_is_refused_by_name(tmp_path: Path) -> None:
    root = with_extension(tmp_path / "r", "sparse-files", True, True, True)
    for readonly in (False, True):
        with pytest.raises(FormatTooNew, match="sparse-files") as caught:
            cs.open(root, readonly=readonly)
        assert caught.value.extension == "sparse-files"
        assert caught.value.exit_code == 1


def test_an_extension_that_forbids_writing_may_be_read(tmp_path: Path) -> None:
    root = with_extension(tmp_path / "r", "new-log", False, True, True)
    with pytest.raises(FormatTooNew, match=r"'new-log'.*write"):
        cs.open(root)
    with cs.open(root, readonly=True) as repo:
        assert list(repo.log()) == []


def test_an_extension_that_forbids_writing_forbids_to_rebuild(tmp_path: Path) -> None:
    root = with_extension(tmp_path / "r", "new-log", False, True, True)
    with pytest.raises(FormatTooNew, match="new-log"):
        rebuild(root)


def test_an_extension_that_forbids_nothing_is_no_obstacle(tmp_path: Path) -> None:
    with cs.open(with_extension(tmp_path / "r", "hints", False, False, False)) as repo:
        repo.commit(STATE)


@pytest.mark.parametrize(
    "fields", [{"chainstore": 2}, {"chainstore": 2, "suite": "new"}, {"chainstore": 1, "suite": 9}]
)
def test_a_newer_format_is_refused_whatever_else_it_says(tmp_path: Path, fields: dict[str, object]) -> None:
    root = made(tmp_path / "r")
    text = json.dumps(fields, sort_keys=True)
    for name in ("format", "format.bak"):
        (root / name).write_text(json.dumps({**fields, "check": f"{crc32c(text.encode()):08x}"}))
    with pytest.raises(FormatTooNew, match=r"format 2|suite 9"):
        cs.open(root)


def test_a_format_that_lacks_a_field_is_malformed(tmp_path: Path) -> None:
    root = made(tmp_path / "r")
    good = json.loads((root / "format").read_text())
    del good["check"]
    for change in (
        {"repo": 5},
        {"repo": "zz"},
        {"suite": [1]},
        {"extensions": 5},
        {"extensions": {"x": 1}},
        {"chunk": "a"},
    ):
        fields = {**good, **change}
        text = json.dumps(fields, sort_keys=True)
        for name in ("format", "format.bak"):
            (root / name).write_text(json.dumps({**fields, "check": f"{crc32c(text.encode()):08x}"}))
        with pytest.raises((Malformed, FormatTooNew, WrongRepository)):
            cs.open(root)


# ---- the same repository more than once


def test_a_notebook_cell_may_run_again(tmp_path: Path) -> None:
    for run in range(3):
        repo = cs.open(tmp_path / "r", create=True)
        repo.commit({"run": run}, f"run {run}")
    assert [commit.message for commit in repo.log()] == ["run 2", "run 1", "run 0"]
    again = cs.open(tmp_path / "r", create=True)
    assert again.head == repo.head
    again.close()
    assert repo.checkout() == {"run": 2}


def test_the_last_handle_closes_what_all_share(tmp_path: Path) -> None:
    first, second = cs.open(tmp_path / "r", create=True), cs.open(tmp_path / "r")
    first.close()
    first.close()
    second.commit(STATE)
    with pytest.raises(InvalidInput, match="closed"):
        first.commit(STATE)
    second.close()
    with pytest.raises(InvalidInput, match="closed"):
        _ = second.head
    with cs.open(tmp_path / "r") as third:
        assert third.head is not None


def test_a_path_through_a_link_is_the_same_repository(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "r")
    with cs.open(tmp_path / "r", create=True) as repo, cs.open(tmp_path / "link") as other:
        assert other.commit(STATE).id == repo.resolve("main")


def test_threads_that_open_it_at_once_make_one_repository(tmp_path: Path) -> None:
    for attempt in range(3):
        path, start = tmp_path / f"r{attempt}", threading.Barrier(4)

        def work(name: int, path: Path = path, start: threading.Barrier = start) -> str:
            start.wait()
            repo = cs.open(path, create=True)
            repo.commit({"from": name}, branch=f"b{name}")
            return repo.id

        with ThreadPoolExecutor(4) as pool:
            ids = list(pool.map(work, range(4)))
        assert len(set(ids)) == 1
        with cs.open(path) as repo:
            assert sorted(repo.branches()) == ["b0", "b1", "b2", "b3"]
            assert repo.verify("data").ok


def test_threads_may_commit_through_one_handle(tmp_path: Path) -> None:
    with cs.open(tmp_path / "r", create=True) as repo, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: repo.commit({"n": n, "data": noise(n, 30_000)}, str(n)), range(12)))
        assert sorted(int(commit.message) for commit in repo.log()) == list(range(12))
        assert repo.verify("data").ok


def test_a_repository_made_anew_at_the_same_path_is_another_one(tmp_path: Path) -> None:
    old = cs.open(tmp_path / "r", create=True)
    old.commit({"run": 1})
    shutil.rmtree(tmp_path / "r")
    new = cs.open(tmp_path / "r", create=True)
    assert new.id != old.id
    assert new.head is None
    new.commit({"run": 2})
    new.close()
    with cs.open(tmp_path / "r") as again:
        assert again.checkout() == {"run": 2}
        assert again.verify("data").ok
    old.close()


def test_a_handle_never_writes_into_the_repository_that_took_its_place(tmp_path: Path) -> None:
    old = cs.open(tmp_path / "r", create=True)
    shutil.rmtree(tmp_path / "r")
    new = cs.open(tmp_path / "r", create=True)
    with pytest.raises((WrongRepository, RepositoryNotFound)):
        old.commit({"run": 1})
    old.close()
    new.commit({"run": 2})
    assert new.verify("data").ok
    new.close()
    with cs.open(tmp_path / "r") as again:
        assert again.checkout() == {"run": 2}


def test_a_repository_that_was_deleted_is_not_found_any_more(tmp_path: Path) -> None:
    repo = cs.open(tmp_path / "r", create=True)
    repo.commit(STATE)
    shutil.rmtree(tmp_path / "r")
    with pytest.raises(RepositoryNotFound):
        repo.commit(STATE)
    assert not (tmp_path / "r").exists()
    repo.close()


def test_init_refuses_a_second_repository_unless_told(tmp_path: Path) -> None:
    cs.init(tmp_path / "r").close()
    with pytest.raises(AlreadyExists):
        cs.init(tmp_path / "r")
    cs.init(tmp_path / "r", exist_ok=True).close()


def test_dot_chain_below_is_found(tmp_path: Path) -> None:
    made(tmp_path / ".chain")
    for create in (False, True):
        with cs.open(tmp_path, create=create) as repo:
            assert repo.path == tmp_path / ".chain"


def test_what_a_create_that_was_cut_off_left_is_no_obstacle(tmp_path: Path) -> None:
    made(tmp_path / "r")
    (tmp_path / "r" / "format").unlink()
    (tmp_path / "r" / "format.bak").unlink()
    with cs.open(tmp_path / "r", create=True) as repo:
        repo.commit(STATE, "again")
        assert [commit.message for commit in repo.log()] == ["again"]
    with cs.open(tmp_path / "r") as repo:
        assert repo.verify("data").ok


def test_readonly_and_create_contradict_each_other(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        cs.open(tmp_path / "r", create=True, readonly=True)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    "setting", [{"threads": 0}, {"threads": -1}, {"threads": "two"}, {"max_memory": "lots"}, {"max_memory": -1}]
)
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, setting: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        cs.open(tmp_path / "r", create=True, **setting)
    with pytest.raises(ConfigError, match="auto, none, fast, small"):
        cs.init(tmp_path / "r", codec="zip")
    assert not (tmp_path / "r").exists()
