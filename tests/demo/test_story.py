"""The demo from its first sentence to its last."""

import io
import random
import re

import pytest
from rich.console import Console

from chainstore.demo.director import Director, Kill, Plan, fate_of_commit
from chainstore.demo.story import FIVE_LINES, main, outcome, sums, tell
from chainstore.demo.telling import Teller
from chainstore.errors import AlreadyExists


def test_the_sums_count_what_is_equal_and_what_one_side_lacks():
    ours = {"model/w": "1", "model/b": "2", "optimizer/m": "3", "step": "4"}
    theirs = {"model/w": "1", "model/b": "9", "optimizer/m": "3", "step": "4", "losses/0": "5"}
    assert [row[1:] for row in sums(ours, theirs)] == [(2, 1), (1, 1), (1, 0), (1, 1)]


def test_what_became_of_a_commit_is_told_as_it_was_found():
    assert "does not exist" in fate_of_commit(Kill(at=8, committing=8), found=4)
    assert "durable" in fate_of_commit(Kill(at=8, committing=8), found=8)
    assert "before the signal" in fate_of_commit(Kill(at=8, committing=8, too_late=True), found=8)


def test_a_second_demo_in_one_place_is_refused_and_leaves_the_first(tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(AlreadyExists):
        main(tmp_path)
    assert list(tmp_path.iterdir()) == [tmp_path / "run"]


def test_different_bits_are_called_different(tmp_path):
    director = Director(tmp_path, Plan(), Teller(Console(file=io.StringIO())), random.Random(1))
    director.lost = [1, 0, 2]
    assert outcome(director, True, 9.6) == "Killed 3 times, 1, 0 and 2 steps computed again, every bit the same. (10 s)"
    assert "differ" in outcome(director, False, 9.6)


def test_five_lines_of_python_are_five():
    assert len(FIVE_LINES.splitlines()) == 5


def test_a_short_performance_ends_in_the_same_bits(tmp_path):
    out = io.StringIO()
    same = tell(tmp_path, Plan(steps=20, every=2), Console(file=out, highlight=False), random.Random(1))
    told = out.getvalue()
    assert same, told
    assert told.count("SIGKILL") >= 2
    assert "DIFFERENT" not in told
    assert re.search(r"Killed \d times, .* every bit the same", told)
    assert max(map(len, told.splitlines())) <= 120
