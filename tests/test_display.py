"""What values look like in a terminal and in a notebook: short, escaped, and without reading data."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import chainstore as cs
from chainstore.display import size, some, table
from chainstore.errors import StateMismatch
from chainstore.ids import ObjectId
from chainstore.model.commit import Commit

HOSTILE = "<script>alert(1)</script> & \"quotes\" 'more' \ud800"


class Page(HTMLParser):
    """Reads a table back: the texts of its cells by row, and what tags it consists of."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.rows: list[list[str]] = [[]]
        self._open: list[str] = []
        html.encode()
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open.append(tag)
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th", "caption"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.rows[-1][-1] += data

    @property
    def title(self) -> str:
        return self.rows[0][0]

    @property
    def facts(self) -> dict[str, str]:
        return {row[0]: row[1] for row in self.rows[1:] if len(row) > 1}


def shown(value: Any) -> Page:
    page = Page(value._repr_html_())
    assert page.tags <= {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    return page


@pytest.fixture
def repo(tmp_path: Path) -> Any:
    with cs.init(tmp_path / "r", encrypt=False) as repo:
        yield repo


# ---- the parts


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        *[(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1234, "1.23 kB"), (999_499, "999 kB"), (999_500, "1 MB")],
        *[(10**9, "1 GB"), (1.5e12, "1.5 TB"), (5e15, "5,000 TB")],
    ],
)
def test_a_size_has_three_digits_and_a_unit(nbytes: float, text: str) -> None:
    assert size(nbytes) == text


def test_of_many_the_first_are_named() -> None:
    assert some([]) == "" and some(["a", "b"]) == "a, b"
    assert some(list("abcdefg"), 2) == "a, b and 5 more"


def test_whatever_goes_into_a_table_is_text() -> None:
    page = Page(table(HOSTILE, [(HOSTILE, HOSTILE, 3)], (HOSTILE, HOSTILE, "three")))
    assert page.tags == {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    text = HOSTILE.replace("\ud800", "\\ud800")
    assert page.title == text and page.rows[1:] == [[text, text, "three"], [text, text, "3"]]


def test_a_long_text_is_cut() -> None:
    (cell,) = Page(table("", [("x" * 10_000,)])).rows[1]
    assert len(cell) == 200 and cell.endswith("...")


# ---- the values


def test_a_commit_shows_what_it_says_of_itself(repo: cs.Repository) -> None:
    repo.commit({"x": np.zeros(1000)}, "first <b>", step=7)
    commit = repo.commit({"x": np.ones(1000)}, step=8, epoch=2, metrics={"loss": 0.25}, meta={"note": "a & b"})
    assert repr(commit) == f"<Commit {commit.short} step 8 ''>"
    page = shown(commit)
    assert page.title.startswith(f"commit {commit.short}")
    assert page.facts["id"] == str(commit.id) and page.facts["step"] == "8" and page.facts["epoch"] == "2"
    assert page.facts["metric loss"] == "0.25" and page.facts["meta note"] == "a & b"
    assert page.facts["parents"] == commit.parents[0].short
    first = shown(repo.get_commit("main~1"))
    assert first.title.endswith("first <b>") and "parents" not in first.facts and "epoch" not in first.facts


def test_a_repository_shows_its_branch_and_tip(repo: cs.Repository) -> None:
    assert shown(repo).facts["tip"] == "nothing was committed yet"
    commit = repo.commit({"x": 1}, "hello", step=3, metrics={"loss": 0.5})
    repo.branch("other")
    facts = shown(repo).facts
    assert facts["tip"] == f"{commit.short} hello" and facts["step"] == "3" and facts["metrics"] == "loss 0.5"
    assert facts["branches"] == "main, other" and facts["on branch"] == "main" and facts["encrypted"] == "no"
    assert facts["path"] == str(repo.path) and str(repo.path) in repr(repo)
    repo.detach("main")
    assert "detached" in shown(repo).facts["on branch"] and "detached" in repr(repo)


def test_a_closed_repository_shows_that_it_is_closed(tmp_path: Path) -> None:
    repo = cs.init(tmp_path / "r", encrypt=False)
    repo.close()
    assert "closed" in shown(repo).facts["error"] and str(repo.path) in repr(repo)


STATE: dict[Any, Any] = {
    "model": {"weight": torch.zeros(3, 4), "bias": torch.zeros(3), "deep": {"er": torch.zeros(2, dtype=torch.int8)}},
    "rows": [torch.zeros(2), torch.zeros(2)],
    "array": np.zeros((2, 5), np.float64),
    "scalar": torch.tensor(1.0, dtype=torch.bfloat16),
    "config": {"lr": 0.1},
    1: 7,
    "1": torch.zeros(0, 3),
    "sparse": torch.eye(4).to_sparse(),
    "<b>": "text",
}


def test_a_snapshot_lists_what_lies_below_it(repo: cs.Repository) -> None:
    repo.commit({**STATE, "tied": STATE["array"]}, step=5)
    snapshot = repo["main"]
    assert repr(snapshot) == f"<Snapshot {snapshot.commit.short} step 5>"
    rows = {row[0]: row[1:] for row in shown(snapshot).rows[2:]}
    assert shown(snapshot).rows[1] == ["key", "holds", "shape", "bytes"]
    assert rows["model"] == ["3 arrays", "", "62 B"]
    assert rows["rows"] == ["2 arrays", "", "16 B"]
    assert rows["array"] == ["float64", "2 x 5", "80 B"]
    assert rows["scalar"] == ["bfloat16", "scalar", "2 B"]
    assert rows["config"][:2] == ["value", ""] and rows["<b>"][:2] == ["value", ""]
    assert rows["1"][:2] == ["float32", "0 x 3"] and len(shown(snapshot).rows) == 2 + len(STATE) + 1
    assert rows["sparse"][:2] == ["float32", "4 x 4"]
    assert rows["tied"] == ["float64", "2 x 5", "0 B"]
    part = shown(snapshot["model"])
    assert part.title.endswith("model") and [row[0] for row in part.rows[2:]] == ["weight", "bias", "deep"]


def test_a_snapshot_is_shown_without_reading_data(repo: cs.Repository) -> None:
    repo.commit(nn.Linear(512, 512).state_dict())
    with cs.open(repo.path, readonly=True) as fresh:
        for pack in (repo.path / "packs").rglob("*"):
            if pack.is_file():
                pack.write_bytes(bytes(pack.stat().st_size))
        snapshot = fresh["main"]
        assert [row[:3] for row in shown(snapshot).rows[2:]] == [
            ["weight", "float32", "512 x 512"],
            ["bias", "float32", "512"],
        ]


def test_a_long_snapshot_is_cut(repo: cs.Repository) -> None:
    repo.commit({f"k{n}": torch.zeros(n) for n in range(100)})
    rows = shown(repo["main"]).rows[2:]
    assert len(rows) == 41 and rows[-1] == ["and 60 more", "", "", size(4 * sum(range(40, 100)))]


def test_a_snapshot_whose_names_are_damaged_says_so_instead_of_failing(repo: cs.Repository) -> None:
    commit = repo.commit({"x": torch.zeros(3)})
    gone = Commit(commit.id, ObjectId(bytes(32)), *[getattr(commit, name) for name in list(commit.__slots__)[2:]])
    snapshot = cs.Snapshot(gone, repo["main"]._reading)
    assert "damaged" in shown(snapshot).facts["error"]


def test_a_load_says_in_one_line_what_did_not_fit(repo: cs.Repository) -> None:
    model = nn.Linear(4, 4)
    repo.commit({"model": model.state_dict()}, step=5)
    good = repo["main"].load_into(model)
    assert repr(good) == f"<LoadResult step 5, {size(good.read_bytes)} read, everything fits>"
    assert shown(good).title == "loaded; everything fits" and shown(good).facts["step"] == "5"
    bad = repo["main"].load_into(nn.Sequential(*[nn.Linear(4, 4)] * 9), at={"model": "model"}, strict=False)
    assert "missing: model/0.weight, model/0.bias" in repr(bad) and len(repr(bad)) < 300
    assert shown(bad).facts["unexpected"] == "2: model/weight, model/bias"
    with pytest.raises(StateMismatch):
        repo["main"].load_into(nn.Linear(3, 4))


def test_a_verification_says_in_one_line_whether_all_is_well(repo: cs.Repository) -> None:
    repo.commit({"x": torch.randn(100_000)})
    good = repo.verify("data")
    assert "all is well" in repr(good) and "data" in repr(good)
    assert shown(good).title == "verify data: all is well" and "damaged" not in shown(good).facts
    for pack in (repo.path / "packs").rglob("*"):
        if pack.is_file():
            pack.write_bytes(bytes(pack.stat().st_size))
    bad = repo.verify("data")
    assert f"{len(bad.damaged)} damaged" in repr(bad) and bad.damaged
    assert shown(bad).facts["damaged"]


def test_statistics_are_said_in_units(repo: cs.Repository) -> None:
    repo.commit({"x": torch.zeros(1000, 1000)})
    stats = repo.stats()
    assert repr(stats).startswith("<RepositoryStats 1 commit, ") and "4 MB take" in repr(stats)
    assert shown(stats).facts["commits"] == "1" and shown(stats).facts["all snapshots"] == "4 MB"
