"""`key`: who may open a repository; and how to keep a copy of one's own key."""

import os
import stat
from pathlib import Path

import pytest

import chainstore as cs
from chainstore import KeyCommand, KeyFile, Passphrase, config
from chainstore.crypto.keys import generate_key_file


def keys(chain, *words) -> list[dict]:
    return chain("key", "list", "--json", *words).json["keys"]


def test_list_marks_the_key_that_is_in_use(chain, repo):
    (slot,) = keys(chain)
    assert slot["opened"] and slot["kind"] == "file"
    assert chain("key", "list").out.startswith(f"* {slot['id']}")


def test_a_key_that_is_added_opens_and_after_it_was_removed_does_not(chain, repo):
    done = chain("key", "add", "--new-key-file", "team.key", "--label", "team")
    assert done.code == 0 and "keep a copy" in done.err and "--key-file" in done.err
    assert stat.S_IMODE(Path("team.key").stat().st_mode) == 0o600
    assert chain("log", "--key-file", "team.key").code == 0
    ours, theirs = keys(chain)
    assert ours["opened"] and not theirs["opened"] and theirs["label"] == "team"
    assert chain("key", "remove", theirs["id"][:4]).code == 0
    assert chain("log", "--key-file", "team.key").code == 12 and chain("log").code == 0


def test_a_key_file_that_is_there_is_taken_as_it_is(chain, repo):
    generate_key_file("other.key")
    before = Path("other.key").read_bytes()
    assert chain("key", "add", "--new-key-file", "other.key").code == 0
    assert Path("other.key").read_bytes() == before and chain("log", "--key-file", "other.key").code == 0


def test_a_key_command_can_be_added(chain, repo):
    generate_key_file("k")
    command = f"cat {Path('k').absolute()}"
    done = chain("key", "add", "--new-key-command", command)
    assert done.code == 0 and "--key-command" in done.err
    assert chain("log", "--key-command", command).code == 0


def test_rotate_replaces_the_key_in_use_and_no_other(chain, repo):
    chain("key", "add", "--new-key-file", "team.key", "--label", "team")
    done = chain("key", "rotate", "--new-key-file", "new.key", "--json")
    assert done.code == 0
    assert chain("log").code == 12
    assert chain("log", "--key-file", "new.key").code == 0 and chain("log", "--key-file", "team.key").code == 0
    listed = {slot["id"]: slot for slot in keys(chain, "--key-file", "new.key")}
    assert done.json["removed"] not in listed and listed[done.json["added"]]["opened"] and len(listed) == 2


def test_the_last_key_and_the_one_in_use_are_not_removed_by_mistake(chain, repo):
    (ours,) = keys(chain)
    done = chain("key", "remove", ours["id"])
    assert done.code == 1 and "last key slot" in done.err
    chain("key", "add", "--new-key-file", "team.key")
    done = chain("key", "remove", ours["id"])
    assert done.code == 1 and "--force" in done.err
    assert chain("key", "remove", ours["id"], "--force").code == 0
    assert chain("log").code == 12 and chain("log", "--key-file", "team.key").code == 0


def test_a_slot_that_is_not_there_is_an_error_that_lists_those_that_are(chain, repo):
    done = chain("key", "remove", "zz")
    assert done.code == 1 and keys(chain)[0]["id"] in done.err
    assert chain("key", "remove", "").code == 1


@pytest.mark.parametrize("words", [[], ["--new-passphrase", "--new-key-file", "x"], ["--label", "x"]])
def test_exactly_one_new_key_is_named(chain, repo, words):
    assert chain("key", "add", *words).code == 2 and chain("key", "rotate", *words).code == 2
    assert not Path("x").exists()


def test_a_passphrase_is_not_asked_for_without_a_terminal(chain, repo, monkeypatch):
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert chain("key", "add", "--new-passphrase").code == 12


def test_the_face_rotates_from_file_to_passphrase(repo):
    with cs.open(repo) as opened:
        id = opened.rotate_key(Passphrase("open sesame"), label="ada")
        assert [(slot.id, slot.kind, slot.label, slot.opened) for slot in opened.list_keys()] == [
            (id, "passphrase", "ada", True)
        ]
    with cs.open(repo, key=Passphrase("open sesame")) as opened:
        assert isinstance(opened.key_in_use(), Passphrase) and opened.head is not None


def test_what_is_not_encrypted_has_no_keys(chain, place):
    chain("init", "--no-encrypt")
    for words in (["list"], ["add", "--new-key-file", "x"], ["remove", "x"], ["export"]):
        assert chain("key", *words).code == 12
    assert not Path("x").exists()


# ---- export


def test_what_export_prints_opens_the_repository(chain, repo):
    done = chain("key", "export")
    assert done.code == 0 and len(done.out) == 65
    Path("copy.key").write_text(done.out)
    assert chain("log", "--key-file", "copy.key").code == 0


def test_export_writes_a_new_file_only_its_owner_reads(chain, repo):
    assert chain("key", "export", "-o", "copy.key").code == 0
    assert stat.S_IMODE(Path("copy.key").stat().st_mode) == 0o600
    assert chain("log", "--key-file", "copy.key").code == 0
    done = chain("key", "export", "-o", "copy.key")
    assert done.code == 1 and "copy.key" in done.err
    assert chain("log", "--key-file", "copy.key").code == 0


def test_a_passphrase_cannot_be_exported(chain, place, monkeypatch):
    monkeypatch.setenv("CHAIN_PASSPHRASE", "open sesame")
    chain("init", "--passphrase")
    done = chain("key", "export")
    assert done.code == 1 and "passphrase" in done.err and "sesame" not in done.err + done.out


def test_outside_of_a_repository_the_users_own_key_is_exported(chain, place, own_settings):
    assert chain("key", "export").code == 12
    made = generate_key_file(own_settings / "user.key")
    assert chain("key", "export").out == made.path.read_bytes().hex() + "\n"
    assert chain("-C", "nowhere", "key", "export").code == 10


def test_people_are_told_to_keep_a_copy_until_they_exported_the_key(chain, place, own_settings):
    own = config.home_problem() is None
    first = chain("init", "one")
    second = chain("init", "two")
    if own:
        assert "keep a copy" in first.err and "keep a copy" in second.err
        assert "keep a copy" in chain("-C", "one", "status").out
    assert chain("-C", "one", "key", "export").code == 0
    if own:
        assert (own_settings / "user.key.exported").exists()
    assert "keep a copy" not in chain("init", "three").err or not own
    assert "keep a copy" not in chain("-C", "one", "status").out


def test_a_key_that_was_made_anew_is_to_be_copied_again(own_settings):
    generate_key_file(own_settings / "user.key")
    config.note_key_exported()
    assert config.key_was_exported()
    (own_settings / "user.key").unlink()
    assert not config.key_was_exported()
    generate_key_file(own_settings / "user.key")
    later = (own_settings / "user.key").stat().st_mtime_ns + 10**9
    os.utime(own_settings / "user.key", ns=(later, later))
    assert not config.key_was_exported()


def test_providers_know_what_they_are():
    assert KeyCommand("cat x").kind == "command" and KeyFile("x").kind == "file"
