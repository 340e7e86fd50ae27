"""Every way to end: the exit code, what is said, and what helps."""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import chainstore as cs
from chainstore import errors
from chainstore.cli.app import App
from chainstore.cli.main import run


def key_file(path: Path) -> Path:
    path.write_bytes(os.urandom(32))
    path.chmod(0o600)
    return path


def test_no_repository_is_10_and_names_the_command_that_makes_one(chain, place):
    done = chain("log")
    assert done.code == 10
    assert str(place) in done.err and "chain init" in done.err and not done.out


def test_no_repository_at_a_path_names_that_path(chain, place):
    done = chain("-C", place / "runs", "log")
    assert done.code == 10 and f"chain init {place / 'runs'}" in done.err


def test_the_repository_is_found_upwards(chain, repo, monkeypatch):
    deep = repo.parent / "a" / "b"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    assert chain("log").code == 0


def test_the_environment_names_the_repository_and_the_flag_wins(chain, repo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHAIN_REPO", str(repo))
    assert chain("log").code == 0
    assert chain("-C", tmp_path / "none", "log").code == 10


def test_global_options_stand_before_or_after_the_command(chain, repo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert chain("--json", "-C", repo, "log", "-n1").json == chain("log", "-n1", "--json", "-C", repo).json


def test_a_wrong_key_is_12(chain, place):
    right, wrong = key_file(place / "right"), key_file(place / "wrong")
    assert chain("init", "--key-file", right).code == 0
    done = chain("log", "--key-file", wrong)
    assert done.code == 12 and str(wrong) in done.err
    assert chain("log", "--key-file", right).code == 0


def test_a_missing_key_is_12_and_says_where_it_was_looked_for(chain, place, own_settings):
    assert chain("init", "--key-file", key_file(place / "right")).code == 0
    done = chain("log")
    assert done.code == 12
    for looked in ("--key-file", "CHAIN_KEY_FILE", "CHAIN_KEY_COMMAND", "CHAIN_PASSPHRASE", own_settings / "user.key"):
        assert str(looked) in done.err


def test_a_key_command_opens_what_it_made(chain, place):
    command = f"cat {key_file(place / 'key')}"
    assert chain("init", "--key-command", command).code == 0
    assert chain("--key-command", command, "log").code == 0
    assert chain("--key-command", "false", "log").code == 12


def test_two_keys_at_once_are_wrong_usage(chain, repo):
    assert chain("log", "--key-file", "a", "--key-command", "b").code == 2


def test_a_key_for_what_is_not_encrypted_is_12(chain, place):
    assert chain("init", "--no-encrypt").code == 0
    assert chain("log").code == 0
    assert chain("log", "--key-file", key_file(place / "key")).code == 12


def test_an_unknown_revision_is_1_and_says_what_comes_closest(chain, repo):
    done = chain("log", "mian")
    assert done.code == 1 and "main" in done.err
    assert chain("show", "step:21", "--json").json["error"] == {
        "code": "revision-not-found",
        "message": "unknown revision 'step:21': no commit has this step",
        "hint": "did you mean step:20 or step:30?",
    }


@pytest.mark.parametrize(
    "words",
    [
        ["frobnicate"],
        ["log", "--frob"],
        ["log", "-n", "0"],
        ["log", "--step", "a:b"],
        ["log", "main", "--all"],
        ["commit"],
        ["commit", "no-such-file"],
        ["branch", "-d"],
        ["tag", "-d"],
        ["checkout"],
        ["checkout", "main", "--dry-run"],
        ["checkout", "main", "-o", "x", "--format", "zip"],
        ["verify", "--quick", "--read-data"],
        ["init", "--no-encrypt", "--passphrase"],
    ],
)
def test_wrong_usage_is_2_and_names_the_help(chain, repo, words):
    done = chain(*words)
    assert done.code == 2 and "--help" in done.err and not done.out
    error = chain(*words, "--json").json["error"]
    assert error["code"] == "usage" and error["message"]


def test_a_name_that_is_taken_is_1(chain, repo):
    assert chain("init").code == 1
    assert chain("branch", "main").code == 1
    assert chain("tag", "best").code == 1


def flip_every_pack(repo: Path) -> None:
    for pack in (repo / "packs").rglob("*"):
        if pack.is_file():
            data = bytearray(pack.read_bytes())
            data[len(data) // 2] ^= 0x10
            pack.write_bytes(data)


@pytest.fixture
def damaged(place) -> Path:
    with cs.init(place / ".chain") as repo:
        repo.commit({"w": np.random.default_rng(0).random(100_000)}, "big")
    flip_every_pack(place / ".chain")
    return place / ".chain"


def test_damage_is_4_and_names_commits_and_paths(chain, damaged):
    done = chain("verify", "--read-data")
    assert done.code == 4 and "damaged" in done.out and " w " in done.out
    report = chain("verify", "--read-data", "--json")
    assert report.code == 4 and report.json["ok"] is False
    hit = report.json["damaged"][0]
    assert hit["paths"] == ["w"] and hit["commits"] == [chain("log", "--json").json["commits"][0]["id"]]


def test_reading_what_is_damaged_is_4(chain, damaged):
    done = chain("show", "HEAD", "w")
    assert done.code == 4 and "'w'" in done.err
    assert chain("checkout", "HEAD", "-o", "out").code == 4


def test_a_whole_repository_verifies(chain, repo):
    for level, name in (([], "links"), (["--quick"], "quick"), (["--read-data"], "data")):
        done = chain("verify", "--json", *level)
        assert done.code == 0 and done.json["ok"] and done.json["level"] == name and done.json["damaged"] == []
        assert chain("verify", *level).out.startswith("all is well")


def test_an_index_that_is_gone_is_4_and_is_made_anew(chain, repo):
    before = chain("log", "--json").json
    for file in (repo / "index").rglob("data.mdb"):
        file.unlink()
    done = chain("log")
    assert done.code == 4 and "chain rebuild-index" in done.err
    done = chain("rebuild-index", "--json")
    assert done.code == 0 and done.json["problems"] == [] and done.json["objects"] > 0
    assert chain("log", "--json").json == before


def test_rebuild_index_ends_with_3_where_something_stays_damaged(chain, damaged):
    for pack in (damaged / "packs").rglob("*"):
        if pack.is_file():
            os.truncate(pack, pack.stat().st_size // 2)
    done = chain("rebuild-index")
    assert done.code == 3 and "damaged:" in done.out


def test_rebuild_index_ends_with_4_where_commits_are_gone(chain, repo):
    for file in (repo / "index").rglob("data.mdb"):
        file.unlink()
    log = next(path for path in (repo / "log").iterdir() if path.stat().st_size)
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    done = chain("rebuild-index", "--json")
    assert done.code == 4 and done.json["lost_lines"]
    assert 0 < len(chain("log", "--json").json["commits"]) < 5


def broken_door(name: str):
    raise ZeroDivisionError("a bug")


def test_a_bug_is_1_in_one_line_and_with_a_traceback_only_if_asked(capsys):
    assert run(["demo"], App(broken_door)) == 1
    out, err = capsys.readouterr()
    assert err.splitlines()[0] == "error: internal error: ZeroDivisionError: a bug; please report it"
    assert "Traceback" not in err and not out
    assert run(["-v", "demo"], App(broken_door)) == 1
    assert "Traceback" in capsys.readouterr().err


def interrupted_door(name: str):
    raise KeyboardInterrupt


def test_an_interrupt_is_130(capsys):
    assert run(["demo"], App(interrupted_door)) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_an_output_that_cannot_be_written_is_1_and_names_it(chain, repo):
    Path("file").write_text("")
    done = chain("checkout", "main", "-o", "file/below")
    assert done.code == 1 and "file" in done.err and "internal" not in done.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.Locked("the log", "process 7", 10.0), 11),
        (errors.WrongKey("no"), 12),
        (errors.RefConflict("heads/main", "a", "b"), 13),
        (errors.RemoteError("away"), 14),
        (errors.StoreFull("no room"), 16),
        (errors.FormatTooNew("x", "read"), 1),
        (errors.IdMismatch("0" * 64, "flipped"), 4),
    ],
)
def test_every_error_ends_with_its_own_code_and_keeps_message_and_hint(capsys, error, code):
    def door(name: str):
        raise error

    assert run(["demo"], App(door)) == code == error.exit_code
    out, err = capsys.readouterr()
    assert not out and err == f"error: {error}\n" + (f"hint: {error.hint}\n" if error.hint else "")


def test_the_demo_ends_as_its_story_does(capsys):
    for code in (0, 1):
        assert run(["demo"], App(lambda name, code=code: SimpleNamespace(main=lambda place: code))) == code
