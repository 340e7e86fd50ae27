"""`gc` on the command line: what it says it did, and what others say of it before."""

import fcntl
import re
from pathlib import Path

import numpy as np
import pytest

import chainstore as cs
from chainstore.cli.progress import describe
from chainstore.observe import Progress


@pytest.fixture
def grown(place: Path) -> Path:
    """Eight commits of 40 kB, of which a policy would keep two."""
    with cs.init(place / ".chain") as repo:
        for number in range(8):
            repo.commit({"w": np.random.default_rng(number).standard_normal(10_000).astype(np.float32)}, step=number)
    return place / ".chain"


def test_it_says_what_it_freed_and_then_that_nothing_is_left_to_do(chain, grown):
    assert chain("forget", "--keep-last", "2").code == 0
    dry = chain("gc", "--dry-run")
    assert re.fullmatch(r"18 objects would be removed\n\d+ kB would be freed\n", dry.out)
    done = chain("gc")
    freed = r"18 objects removed\n[\d.]+ kB freed, 1 pack removed, [\d.]+ kB moved together\n"
    assert re.fullmatch(freed, done.out), done.out
    again = chain("gc", "--explain")
    assert again.out == "nothing to do: nothing was dropped since the last gc\n"
    assert chain("checkout", "main~1", "-o", "w.npz").code == 0
    gone = chain("checkout", "main~2", "-o", "x.npz")
    assert gone.code == 1 and "forgotten" in gone.err


def test_the_stored_policy_comes_first(chain, grown):
    with cs.open(grown) as repo:
        repo.set_retention(cs.Retention(last=3))
    assert chain("gc", "--no-forget", "--json").json["forgotten"] == 0
    assert chain("gc", "--dry-run").out.startswith("5 snapshots would be dropped by the repository's policy\n")
    assert chain("gc").out.startswith("5 snapshots dropped by the repository's policy\n")


def test_explain_is_a_table_with_a_sum(chain, grown):
    chain("branch", "side", "main~5")
    chain("branch", "-d", "side")
    chain("reset", "main~2")  # what it left is in its reflog
    chain("forget", "--keep-last", "1")
    done = chain("gc", "--explain")
    lines = done.out.splitlines()
    head = next(number for number, line in enumerate(lines) if "WHY" in line)
    assert lines[head].split() == ["STAY", "OBJECTS", "WHY"]
    at = lines[head].index("WHY")
    rows = [(line[:at].split(), line[at:]) for line in lines[head + 1 :]]
    assert [why for _, why in rows] == ["branches lead to it", "reflogs remember it, for 14 days", "in all"]
    objects = [int(cells[2]) for cells, _ in rows]
    assert objects[-1] == sum(objects[:-1])
    assert all(line[at - 1] == " " and line[at] != " " for line in lines[head:])
    report = chain("gc", "--dry-run", "--json").json
    assert sum(kept["objects"] for kept in report["kept"]) == objects[-1]


def test_what_could_be_given_back_is_said_before(chain, grown):
    for command in ("stats", "du"):
        assert chain(command, "--json").json["reclaimable_bytes"] is None
        assert "give back" not in chain(command).out
    chain("forget", "--keep-last", "2")
    before = [chain(command, "--reclaimable", "--json").json["reclaimable_bytes"] for command in ("stats", "du")]
    assert before[0] == before[1] > 6 * 33_000
    for command in (["stats"], ["du"], ["du", "--branches"]):
        assert re.search(r"\d+ kB of .*`chain gc` would give back", chain(*command, "--reclaimable").out)
    assert chain("gc", "--json").json["useless_bytes"] == before[0]
    assert chain("stats", "--reclaimable", "--json").json["reclaimable_bytes"] == 0


def test_looking_changes_nothing_and_needs_no_right_to_write(chain, grown):
    chain("forget", "--keep-last", "2")
    before = {path: path.read_bytes() for path in grown.rglob("*") if path.is_file() and path.name != "lock.mdb"}
    chain("stats", "--reclaimable")
    chain("gc", "--dry-run")
    assert {path: path.read_bytes() for path in before} == before


def test_another_one_at_work_is_named(chain, grown):
    with open(grown / "leases" / "gc", "w+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(b"process 7 on node3, since 2026-11-30 09:00:00")
        file.flush()
        done = chain("gc")
    assert done.code == 11
    assert "process 7 on node3, since 2026-11-30 09:00:00" in done.err
    assert chain("gc").code == 0


def test_foreign_files_are_named(chain, grown):
    (grown / "packs" / "README").write_text("mine")
    assert "not ours, left alone: packs/README" in chain("gc").out
    assert chain("gc", "--json").json["foreign"] == ["packs/README"]


def test_progress_counts_commits_then_bytes_and_says_how_long_it_takes():
    assert describe(Progress("gc mark", 64, 0), 1.0) == "gc mark  64 commits"
    assert describe(Progress("gc", 25_000_000, 100_000_000), 2.0) == "gc  25 MB of 100 MB  25%  12.5 MB/s  6 s left"
