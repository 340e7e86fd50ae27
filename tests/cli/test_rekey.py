"""`chain rekey`: what it says, and what it ends with."""

from pathlib import Path

from tests.cli.conftest import Chain


def test_it_says_what_it_would_do_and_did(chain: Chain, repo: Path) -> None:
    dry = chain("rekey", "--reencrypt", "--dry-run")
    assert dry.code == 0 and "generation 2 would be made" in dry.out and "would be rewritten" in dry.out
    plain = chain("rekey")
    assert plain.code == 0 and "--reencrypt rewrites them" in plain.out
    done = chain("rekey", "--reencrypt")
    assert done.code == 0 and "gone on with" in done.out and "older keys open nothing here any more" in done.out
    assert chain("verify", "--read-data").code == 0


def test_other_keys_are_named_before_anything_is_changed(chain: Chain, repo: Path, place: Path) -> None:
    assert chain("key", "add", "--new-key-file", "team.key", "--label", "team").code == 0
    refused = chain("rekey", "--reencrypt")
    assert refused.code == 1 and "(team)" in refused.err and "--drop-other-keys" in refused.err
    done = chain("rekey", "--reencrypt", "--drop-other-keys")
    assert done.code == 0 and "1 other key closed" in done.out
    assert chain("--key-file", "team.key", "log").code == 12


def test_without_keys_there_is_nothing_to_renew(chain: Chain, place: Path) -> None:
    assert chain("init", "plain", "--no-encrypt").code == 0
    assert chain("-C", "plain", "rekey").code == 12
