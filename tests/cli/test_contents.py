"""`ls`, `cat`, `du`, `status`, `stats --plot`: what is in a snapshot, and where the bytes are."""

import re

import numpy as np
import pytest
import torch

import chainstore as cs
from chainstore.cli.plot import ASCII, HEIGHT, UNICODE, draw, ink_for

WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def full(place):
    """A repository with one commit that holds every kind of thing."""
    (place / "notes.txt").write_bytes(b"a\n\xff")
    state = {
        "model": {"w": WEIGHT, "half": torch.tensor([1.5, -2], dtype=torch.bfloat16), "turned": WEIGHT.copy().T},
        "odd": np.array([np.nan, 1]),
        "cfg": {"lr": 0.1, "name": "grüße", "steps": (1, 2), "seen": {1}},
        "raw": b"\x00\x01",
        "notes.txt": "the state's",
    }
    with cs.init(place / ".chain") as repo:
        repo.commit(state, "all", step=7, files={"notes.txt": "notes.txt", "a/b.txt": "notes.txt"})
    return place / ".chain"


def test_ls_lists_arrays_values_and_files_without_reading_them(chain, full):
    for pack in (full / "packs").rglob("*"):
        if pack.is_file():
            pack.write_bytes(b"")
    lines = chain("ls").out.splitlines()
    assert re.fullmatch(r"model/w +float32 +2 x 3 +24 B", lines[0])
    assert re.search(r"^raw +value +\d+ B$", "\n".join(lines), re.MULTILINE)
    assert re.search(r"^a/b.txt +file +3 B$", "\n".join(lines), re.MULTILINE)


def test_ls_takes_a_glob_and_says_where_nothing_matches(chain, full):
    assert [e["path"] for e in chain("ls", "HEAD", "model/*", "--json").json["entries"]] == [
        "model/w",
        "model/half",
        "model/turned",
    ]
    assert [e["kind"] for e in chain("ls", "HEAD", "**/*.txt", "--json").json["entries"]] == ["value", "file", "file"]
    done = chain("ls", "HEAD", "nothing/*")
    assert done.code == 1 and "nothing/*" in done.err and not done.out


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("cfg/lr", "0.1\n"),
        ("cfg/name", "grüße\n"),
        ("cfg/steps", "[1, 2]\n"),
        ("cfg/seen", "{1}\n"),
        ("notes.txt", "the state's\n"),
        ("model/w", "[[0. 1. 2.]\n [3. 4. 5.]]\n"),
        ("model/half", "[ 1.5 -2. ]\n"),
    ],
)
def test_cat_prints_a_value_and_nothing_else(chain, full, path, text):
    done = chain("cat", "HEAD", path)
    assert done.code == 0 and done.out == text and not done.err


def test_cat_prints_bytes_as_they_are(full, capfdbinary):
    from chainstore.cli.main import main

    def printed(*words: str) -> bytes:
        assert main(["cat", "HEAD", *words]) == 0
        return capfdbinary.readouterr().out

    assert printed("a/b.txt") == printed("notes.txt", "--file") == b"a\n\xff"
    assert printed("raw") == b"\x00\x01"
    assert printed("model/w", "--raw") == WEIGHT.tobytes()
    assert printed("model/turned", "--raw") == WEIGHT.T.tobytes(order="C")
    assert printed("model/half", "--raw") == b"\xc0\x3f\x00\xc0"
    assert printed("cfg/name", "--raw") == "grüße".encode()


def test_cat_in_json_keeps_what_json_lacks_apart(chain, full):
    assert chain("cat", "HEAD", "odd", "--json").json["elements"] == ["nan", 1.0]
    assert chain("cat", "HEAD", "model/half", "--json").json["dtype"] == "bfloat16"
    assert chain("cat", "HEAD", "raw", "--json").json["base64"] == "AAE="
    assert chain("cat", "HEAD", "cfg/seen", "--json").json["value"] == {"repr": "{1}"}


def test_cat_of_what_is_no_single_value_says_what_lists_it(chain, full):
    done = chain("cat", "HEAD", "model")
    assert done.code == 1 and "chain ls HEAD 'model/**'" in done.err
    assert chain("cat", "HEAD", "modle").code == 1
    assert chain("cat", "HEAD", "cfg/lr", "--raw").code == 1
    assert chain("cat", "HEAD", "model/w", "--raw", "--json").code == 2


def test_du_adds_up_to_what_the_snapshot_holds(chain, full):
    found = chain("du", "--json").json
    commit = chain("log", "--json").json["commits"][0]
    assert sum(path["logical_bytes"] for path in found["paths"]) == commit["raw_bytes"]
    assert {path["path"] for path in found["paths"]} == {"model", "odd", "cfg", "raw", "notes.txt", "(files)"}
    kinds = {kind["kind"]: kind for kind in found["kinds"]}
    assert kinds["commit"]["objects"] == 1
    assert sum(path["stored_bytes"] for path in found["paths"]) == kinds["chunk"]["stored_bytes"]


def test_du_counts_a_chunk_that_several_snapshots_share_once(chain, place):
    with cs.init(place / ".chain", codec="none") as repo:
        for n in range(3):
            repo.commit({"same": np.ones(30_000), "new": np.full(10_000, n, np.float64)})
    one, three = ({p["path"]: p for p in chain("du", "-n", n, "--json").json["paths"]} for n in (1, 3))
    assert three["same"]["logical_bytes"] == 3 * one["same"]["logical_bytes"] == 3 * 240_000
    assert three["same"]["stored_bytes"] == one["same"]["stored_bytes"] > 240_000
    assert three["new"]["stored_bytes"] > 2.9 * one["new"]["stored_bytes"]


def test_du_by_branch_tells_what_only_one_of_them_needs(chain, place):
    with cs.init(place / ".chain", codec="none") as repo:
        repo.commit({"w": np.ones(30_000)})
        repo.branch("side")
        repo.commit({"w": np.ones(30_000), "v": np.zeros(50_000)}, branch="side")
    main, side = chain("du", "--branches", "--json").json["branches"]
    assert (main["branch"], main["commits"], side["branch"], side["commits"]) == ("main", 1, "side", 2)
    assert main["own_bytes"] == 0 and 400_000 < side["own_bytes"] < 405_000
    assert side["logical_bytes"] == main["logical_bytes"] + 640_000
    assert chain("du", "main", "--branches").code == 2
    assert re.search(r"side +2 +880 kB", chain("du", "--branches").out)


def test_status_says_where_the_repository_stands(chain, repo, own_settings):
    found = chain("status", "--json").json
    assert (found["branch"], found["tip"]["step"], found["branches"], found["tags"]) == ("main", 40, 2, 1)
    assert found["disk_bytes"] > 100_000 and found["free_bytes"] > 0 and found["lines_ahead"] == 0
    text = chain("status").out
    assert "main" in text and "step 40" in text and "2 branches, 1 tag" in text and "ahead" not in text
    chain("checkout", "main~1")
    assert chain("status", "--json").json["branch"] is None and "on no branch" in chain("status").out


def test_status_of_an_empty_repository_says_that_nothing_was_committed(chain, place):
    chain("init", "--no-encrypt")
    done = chain("status")
    assert "nothing was committed yet" in done.out and "not encrypted" in done.out
    assert chain("status", "--json").json["tip"] is None


def test_status_says_that_a_crash_left_the_log_ahead(chain, repo):
    index = next((repo / "index").rglob("data.mdb"))
    before = index.read_bytes()
    with cs.open(repo) as opened:
        opened.commit({"x": 1}, "only in the log")
    with open(index, "r+b") as file:  # the same file, as the crash of a process leaves it
        file.write(before)
        file.truncate(len(before))
    assert "1 line ahead" in chain("status").out
    assert chain("status", "--json").json["lines_ahead"] == 1
    chain("tag", "settled")
    assert "ahead" not in chain("status").out


# ---- the chart


def plain(text: str, kind: str) -> str:
    return text


def test_a_chart_is_as_wide_as_the_terminal_and_grows(chain, repo, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    chart = chain("stats", "--plot").out.splitlines()[3:]
    assert max(map(len, chart)) == 50 and len(chart) == HEIGHT + 3
    assert chart[-1].startswith("  █ stored") and "step 0" in chart[-2] and chart[-2].endswith("step 40")
    monkeypatch.setenv("COLUMNS", "10")
    assert chain("stats", "--plot").code == 0


def test_a_chart_of_nothing_is_left_out(chain, place):
    chain("init", "--no-encrypt")
    done = chain("stats", "--plot")
    assert done.code == 0 and len(done.out.splitlines()) == 2


@pytest.mark.parametrize("ink", [UNICODE, ASCII])
def test_columns_are_as_high_as_the_bytes_are_many(ink):
    lines = list(draw([(0, 0), (600, 300), (1200, 600)], 6 + 2 + 30, ink, plain, ("a", "b")))[:HEIGHT]
    columns = ["".join(column)[::-1] for column in zip(*(f"{line:38}"[-30:] for line in lines), strict=True)]
    full = ink.stored[-1]
    assert columns[-1] == full * 6 + ink.logical * 6
    assert columns[15] == full * 3 + ink.logical * 3 + " " * 6
    assert columns[0].strip() == ""


def test_a_stream_that_lacks_the_signs_gets_ascii():
    assert ink_for("utf-8") is UNICODE and ink_for("ascii") is ASCII and ink_for("latin-1") is ASCII
    assert ink_for(None) is ASCII and ink_for("no such encoding") is ASCII
