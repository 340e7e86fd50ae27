"""`config`, and the settings behind it: what is in force, and who said so."""

import numpy as np
import pytest

import chainstore as cs
from chainstore import settings
from chainstore.errors import ConfigError


def in_force(chain, name: str) -> tuple[object, str]:
    (found,) = chain("config", "get", name, "--json").json["settings"]
    return found["value"], found["origin"]


def test_the_nearest_voice_decides(chain, repo, own_settings, monkeypatch):
    assert in_force(chain, "max_memory") == (256 << 20, "default")
    (own_settings / "config.toml").write_text('max_memory = "1GiB"\nthreads = 7\n')
    assert in_force(chain, "max_memory") == (1 << 30, "the user's settings")
    assert in_force(chain, "threads") == (7, "the user's settings")
    assert chain("config", "set", "max_memory", "64MiB").code == 0
    assert in_force(chain, "max_memory") == (64 << 20, "the repository")
    monkeypatch.setenv("CHAIN_MAX_MEMORY", "32MiB")
    assert in_force(chain, "max_memory") == (32 << 20, "environment")
    assert settings.resolve("max_memory", "16MiB", {}).origin == "argument"
    monkeypatch.delenv("CHAIN_MAX_MEMORY")
    assert chain("config", "unset", "max_memory").code == 0
    assert in_force(chain, "max_memory") == (1 << 30, "the user's settings")


def test_what_is_in_force_is_used(repo, own_settings, monkeypatch):
    def used(**given) -> tuple[int, int]:
        with cs.open(repo, **given) as opened:
            return opened._handle.settings.threads, opened._handle.settings.max_memory_bytes

    with cs.open(repo) as opened:
        opened.set_setting("threads", 3)
        opened.set_setting("max_memory", "64MiB")
    assert used() == (3, 64 << 20)
    assert used(threads=5, max_memory="1MiB") == (5, 1 << 20)
    monkeypatch.setenv("CHAIN_THREADS", "4")
    assert used() == (4, 64 << 20)


def test_the_codec_of_the_repository_is_used_by_commits(place, chain, monkeypatch):
    noise = np.random.default_rng(0).random(100_000, np.float32)
    sizes = {}
    for codec in ("none", "auto"):
        with cs.init(place / codec) as repo:
            repo.set_setting("codec", codec)
            sizes[codec] = repo.commit({"w": noise}).stats.stored_bytes
    assert sizes["auto"] < 0.95 * sizes["none"]
    monkeypatch.setenv("CHAIN_CODEC", "none")
    with cs.open(place / "auto") as repo:
        assert repo.commit({"w": noise + 1}).stats.stored_bytes == sizes["none"]
        assert repo.commit({"w": noise + 2}, codec="auto").stats.stored_bytes < 0.95 * sizes["none"]


def test_list_shows_every_setting_and_where_it_comes_from(chain, repo):
    chain("config", "set", "threads", "2")
    lines = [line.split() for line in chain("config", "list", "--show-origin").out.splitlines()]
    assert [line[0] for line in lines] == list(settings.KNOWN)
    assert ["threads", "2", "the", "repository"] in lines
    assert chain("config", "list").out.splitlines()[1].split() == ["threads", "2"]


def test_settings_can_be_looked_at_without_a_repository(chain, place):
    assert chain("config", "get", "codec").out == "auto\n"
    assert chain("config", "set", "codec", "small").code == 10
    assert chain("-C", "nowhere", "config", "list").code == 10


def test_an_unknown_setting_is_refused_and_the_nearest_named(chain, repo):
    for words in (["get", "thread"], ["set", "thread", "1"], ["unset", "thread"]):
        done = chain("config", *words)
        assert done.code == 1 and "did you mean threads or shadow?" in done.err
    assert "codec, threads, max_memory" in chain("config", "get", "xyz").err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("codec", "zip"),
        ("threads", "0"),
        ("threads", "many"),
        ("threads", "9999"),
        ("max_memory", "big"),
        ("max_memory", "0"),
        ("git_diff", "perhaps"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_wherever_it_is_said(
    chain, repo, own_settings, monkeypatch, name, value
):
    assert chain("config", "set", name, value).code == 1
    monkeypatch.setenv(f"CHAIN_{name.upper()}", value)
    done = chain("config", "get", name)
    assert done.code == 1 and "environment" in done.err
    monkeypatch.delenv(f"CHAIN_{name.upper()}")
    (own_settings / "config.toml").write_text(f'{name} = "{value}"\n')
    if name == "codec":
        chain("config", "unset", "codec")
    assert "the user's settings" in chain("config", "get", name).err


def test_a_setting_survives_a_rebuild_of_the_index(chain, repo):
    chain("config", "set", "threads", "3")
    for file in (repo / "index").rglob("data.mdb"):
        file.unlink()
    assert chain("rebuild-index").code == 0
    assert in_force(chain, "threads") == (3, "the repository")


def test_numbers_are_taken_as_they_are():
    assert settings.resolve("threads", 4, {}).value == 4
    assert settings.resolve("threads", None, {"threads": "6"}).value == 6
    for wrong in (True, 0, 1.5, "1.5", "²"):
        with pytest.raises(ConfigError):
            settings.parse_threads(wrong)


def test_yes_and_no_can_be_said_in_several_ways():
    said = {"yes": ("yes", "True", "on", 1, True), "no": ("no", "FALSE", "off", 0, False)}
    assert all(settings.parse_yes(word) == answer for answer, words in said.items() for word in words)
    for wrong in ("", "maybe", 2, None):
        with pytest.raises(ConfigError):
            settings.parse_yes(wrong)


def test_misspelled_commands_are_answered_with_the_nearest(chain, repo):
    done = chain("lgo")
    assert done.code == 2 and "did you mean log" in done.err
    done = chain("config", "lst")
    assert done.code == 2 and "did you mean list" in done.err
    assert "did you mean" not in chain("xyzzy").err
    assert chain("comit", "--json").json["error"]["message"] == "no command 'comit'; did you mean commit?"


def test_when_snapshots_are_taken_is_the_repositorys_own(chain, repo, own_settings):
    (own_settings / "config.toml").write_text('interval = "1 step"\n')
    assert in_force(chain, "interval") == ("", "default")
    assert chain("config", "set", "interval", "every 100 steps or 30 minutes").code == 0
    assert in_force(chain, "interval") == ("100 steps or 30m", "the repository")
    for wrong in ("0", "0s", "abc", "10 parsecs", ""):
        done = chain("config", "set", "interval", wrong)
        assert done.code != 0 and "is no interval" in done.err, wrong
    assert in_force(chain, "interval") == ("100 steps or 30m", "the repository")
