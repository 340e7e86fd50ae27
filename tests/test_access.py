"""Access: which key opens a repository, where it was looked for, and that none is made where one was named."""

import os

import pytest

from chainstore import access, config
from chainstore.crypto.bundle import new_bundle
from chainstore.crypto.keyring import Keyring
from chainstore.crypto.keys import KeyFile, Passphrase, generate_key_file
from chainstore.errors import KeyRequired, StorageError, WrongKey
from chainstore.observe import silent


@pytest.fixture(autouse=True)
def durable_home(monkeypatch):
    monkeypatch.setattr(config, "home_problem", lambda path=None: None)


def keyring_for(*providers) -> tuple[Keyring, object]:
    bundle = new_bundle(os.urandom)
    keyring = Keyring(0, bytes(16))
    for provider in providers:
        keyring = keyring.with_slot(provider, bundle, random=os.urandom)
    return keyring, bundle


def test_the_first_use_makes_the_users_key_and_says_so(tmp_path):
    notices = []
    chosen = access.key_for_new(tmp_path, None, notices.append)
    assert config.user_key_path().stat().st_mode & 0o777 == 0o600
    assert [notice.kind if hasattr(notice, "kind") else notice.code for notice in notices] == ["key-made"]
    again = access.key_for_new(tmp_path, None, notices.append)
    assert [notice.code for notice in notices] == ["key-made", "key-kept"]
    config.note_key_exported()
    assert access.key_for_new(tmp_path, None, notices.append) == again and len(notices) == 2
    keyring, bundle = keyring_for(chosen.provider)
    assert keyring.open(again.provider) == bundle
    opened, where = access.unlock(tmp_path, keyring, None)
    assert opened == bundle
    assert str(config.user_key_path()) in where.origin


def test_where_home_does_not_last_the_key_goes_into_the_repository_with_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "home_problem", lambda path=None: "the home directory is in memory")
    notices = []
    chosen = access.key_for_new(tmp_path, None, notices.append)
    assert (tmp_path / access.KEY_IN_REPOSITORY).is_file()
    assert not config.user_key_path().exists()
    assert len(notices) == 1
    keyring, bundle = keyring_for(chosen.provider)
    assert access.unlock(tmp_path, keyring, None)[0] == bundle


def test_a_key_that_was_named_decides_and_none_is_made(tmp_path, monkeypatch):
    given, named = Passphrase("given"), generate_key_file(tmp_path / "named.key")
    assert access.key_for_new(tmp_path, given, silent).provider is given
    monkeypatch.setenv("CHAIN_KEY_FILE", str(tmp_path / "named.key"))
    assert isinstance(access.key_for_new(tmp_path, None, silent).provider, KeyFile)
    assert not config.user_key_path().exists()
    keyring, bundle = keyring_for(named)
    assert access.unlock(tmp_path, keyring, None)[0] == bundle
    with pytest.raises(WrongKey):
        access.unlock(tmp_path, keyring, given)  # an argument beats the environment


def test_a_named_key_that_is_wrong_is_not_replaced_by_one_that_lies_about(tmp_path, monkeypatch):
    keyring, _ = keyring_for(access.key_for_new(tmp_path, None, silent).provider)
    monkeypatch.setenv("CHAIN_PASSPHRASE", "wrong")
    with pytest.raises(WrongKey):
        access.unlock(tmp_path, keyring, None)


def test_keys_that_lie_about_are_all_tried(tmp_path):
    inside = generate_key_file(tmp_path / access.KEY_IN_REPOSITORY)
    users = access.key_for_new(tmp_path / "other", None, silent).provider
    for right in (inside, users):
        keyring, bundle = keyring_for(right)
        assert access.unlock(tmp_path, keyring, None)[0] == bundle
    with pytest.raises(WrongKey):
        access.unlock(tmp_path, keyring_for(generate_key_file(tmp_path / "lost.key"))[0], None)


def test_without_any_key_the_error_says_where_it_looked(tmp_path):
    keyring, _ = keyring_for(Passphrase("forgotten"))
    with pytest.raises(KeyRequired) as error:
        access.unlock(tmp_path, keyring, None)
    for place in ("CHAIN_KEY_FILE", "CHAIN_PASSPHRASE", str(tmp_path), str(config.user_key_path())):
        assert place in error.value.hint


def test_what_was_given_for_this_very_run_is_told_apart_from_what_lies_about(monkeypatch, tmp_path):
    access.key_for_new(tmp_path, None, silent)
    assert access.given(None) is None
    assert access.given(Passphrase("x")) == Passphrase("x").id
    monkeypatch.setenv("CHAIN_PASSPHRASE", "secret words")
    assert access.given(None)
    assert "secret" not in access.given(None)


def test_a_place_where_no_key_can_be_made_is_a_storage_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("CHAIN_CONFIG_DIR", str(tmp_path / "file" / "below"))
    with pytest.raises(StorageError):
        access.key_for_new(tmp_path, None, silent)
