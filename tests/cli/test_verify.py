"""`chain verify`: what it says of damage, what CI reads of it, and how a copy heals it."""

import os
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from junitparser import Error, Failure, JUnitXml, Skipped

import chainstore as cs
from chainstore.cli.junit import junit_of, junit_of_error, write_junit
from chainstore.repository import CHECKS, Damage, VerifyReport
from tests.cli.test_json import check


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random(30_000)


@pytest.fixture(params=[True, False], ids=["encrypted", "plain"])
def run(place: Path, request: pytest.FixtureRequest) -> Path:
    """A repository of three commits that share a tensor, beside a copy of it in `copy`."""
    with cs.init(place / ".chain", encrypt=request.param) as repo:
        for step in range(3):
            state = {"model": {"shared": noise(0), "own": noise(step + 1)}, "lr": 0.1 * step}
            repo.commit(state, f"commit {step}", step=step)
    shutil.copytree(place / ".chain", place / "copy")
    return place / ".chain"


def packs(root: Path) -> list[Path]:
    return sorted(path for path in (root / "packs").rglob("*") if path.is_file())


def spoil(root: Path, at: int = 5000) -> Path:
    (path,) = packs(root)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    return path


def suite(path: Path) -> list:
    """Return the test cases of a JUnit file, as a parser of such files reads them, once the counts fit them."""
    parsed = JUnitXml.fromfile(str(path))
    cases = [case for suite in parsed for case in suite]
    results = [result for case in cases for result in case.result]
    assert parsed.tests == len(cases)
    assert parsed.failures == sum(isinstance(result, Failure) for result in results)
    assert parsed.errors == sum(isinstance(result, Error) for result in results)
    return cases


def test_a_lost_pack_is_one_sentence_for_each_kind_of_object_and_json_names_every_one(chain, run):
    (path,) = packs(run)
    path.unlink()
    done = chain("verify", "--read-data")
    assert done.code == 4
    assert done.out.count(f"pack {path.name} is missing") == 3  # commits, pages, chunks
    assert "model/shared" in done.out and "model/own" in done.out
    found = check(chain("verify", "--read-data", "--json").out)
    assert len(found["damaged"]) > 10 and all(damage["pack"] == path.name for damage in found["damaged"])
    commits = {id for damage in found["damaged"] for id in damage["commits"]}
    assert commits == {commit["id"] for commit in chain("log", "--json").json["commits"]}


def test_a_part_of_the_data_is_read_and_told(chain, run):
    done = chain("verify", "--read-data-subset", "1/7")
    assert done.code == 0 and "of them read (1/7)" in done.out
    found = check(chain("verify", "--read-data-subset", "50%", "--seed", "3", "--json").out)
    assert (found["sample"], found["seed"], found["level"]) == ("50%", 3, "data")
    again = chain("verify", "--read-data-subset", "50%", "--json").json
    assert f"seed {again['seed']}" in chain("verify", "--read-data-subset", "50%", "--seed", again["seed"]).out


@pytest.mark.parametrize("part", ["5", "0/7", "8/7", "1/0", "200%", "a lot", "-1"])
def test_a_part_that_makes_no_sense_is_refused_by_name(chain, run, part):
    if part == "5":  # bytes
        assert chain("verify", "--read-data-subset", part).code == 0
        return
    done = chain("verify", f"--read-data-subset={part}")
    assert done.code in (1, 2) and part in done.err


@pytest.mark.parametrize(
    "words",
    [
        ["--read-data", "--read-data-subset", "5%"],
        ["--no-key", "--quick"],
        ["--no-key", "--repair-from", "copy"],
        ["--quick", "--repair-from", "copy"],
        ["--dry-run"],
        ["--seed", "3"],
        ["--junit", "no/such/folder/report.xml"],
    ],
)
def test_options_that_exclude_each_other_are_wrong_usage(chain, run, words):
    assert chain("verify", *words).code == 2


def test_without_a_key_damage_is_named_by_pack_and_offset(chain, run, own_settings):
    path = spoil(run)
    for key in own_settings.rglob("*.key"):
        key.unlink()
    done = chain("verify", "--no-key")
    assert done.code == 4 and path.name in done.out and "byte 0 " in done.out
    found = check(chain("verify", "--no-key", "--json").out)
    (damage,) = found["damaged"]
    assert (damage["pack"], damage["offset"], found["level"]) == (path.name, 0, "records")


def test_a_copy_heals_what_is_damaged_and_the_exit_code_says_so(chain, run):
    path = spoil(run)
    before = chain("verify", "--read-data", "--json").json["damaged"]
    done = chain("verify", "--repair-from", "copy", "--dry-run")
    assert done.code == 4 and "would be taken" in done.out and not list((run / "quarantine").iterdir())
    done = chain("verify", "--repair-from", "copy")
    assert done.code == 3 and "1 damage healed" in done.out and f"quarantine/{path.name}-0.record" in done.out
    assert "model/" in done.out
    assert chain("verify", "--read-data").code == 0
    spoil(run, at=5000)  # what lies there now is dead
    assert chain("verify", "--read-data").code == 0
    spoil(run, at=300_000)
    found = chain("verify", "--repair-from", "copy", "--json")
    told = check(found.out)
    assert found.code == 3 and told["ok"] and told["damaged"] == [] and told["taken"] == 1
    assert told["healed"][0]["paths"] != [] and before[0]["id"] != told["healed"][0]["id"]


def test_a_lost_pack_is_healed(chain, run):
    packs(run)[0].unlink()
    assert chain("verify", "--repair-from", "copy").code == 3
    assert chain("verify", "--read-data").code == 0
    with cs.open(run) as repo:
        assert (repo["step:1"]["model"]["own"] == noise(2)).all()


def test_what_no_copy_has_stays_damage(chain, run):
    spoil(run)
    spoil(Path("copy"))
    done = chain("verify", "--repair-from", "copy")
    assert done.code == 4 and "1 damage" in done.out


def test_nothing_damaged_is_nothing_to_repair(chain, run):
    done = chain("verify", "--repair-from", "copy")
    assert done.code == 0 and done.out.startswith("all is well")


def test_another_repository_is_12_and_nothing_is_taken_from_it(chain, run):
    with cs.init("other", encrypt=cs.open(run).encrypted) as other:
        other.commit({"x": 1})
    spoil(run)
    assert chain("verify", "--repair-from", "other").code == 12
    assert chain("verify", "--repair-from", "nowhere").code == 10
    for name in ("format", "format.bak"):
        (run / name).write_bytes(b"rot")
    assert chain("verify", "--repair-from", "other").code == 12
    assert (run / "format").read_bytes() == b"rot"


def test_what_keeps_it_from_opening_is_healed_first(chain, run):
    for name in ("format", "format.bak"):
        (run / name).write_bytes(b"rot")
    shutil.rmtree(run / "index")
    spoil(run)
    assert chain("verify").code == 4
    done = chain("verify", "--repair-from", "copy")
    assert done.code == 3, done
    assert "format was damaged" in done.out and "the index was made anew" in done.out
    assert chain("verify", "--read-data").code == 0


# ---- JUnit


def test_a_whole_repository_gives_a_file_in_which_every_check_passes(chain, run):
    assert chain("verify", "--read-data", "--junit", "report.xml").code == 0
    cases = suite(Path("report.xml"))
    assert {case.classname for case in cases} == {f"chain.verify.{name}" for name in CHECKS}
    assert [case.classname for case in cases if case.result] == ["chain.verify.records"]
    assert all(isinstance(case.result[0], Skipped) for case in cases if case.result)


def test_each_damaged_thing_is_a_case_that_failed(chain, run):
    packs(run)[0].unlink()
    assert chain("verify", "--read-data", "--junit", "report.xml").code == 4
    failed = [case for case in suite(Path("report.xml")) if any(isinstance(each, Failure) for each in case.result)]
    damaged = chain("verify", "--read-data", "--json").json["damaged"]
    assert len(failed) == len(damaged)
    assert any("path model/own" in case.result[0].text for case in failed)
    assert any(f"commit {damaged[-1]['commits'][0]}" in case.result[0].text for case in failed)


def test_what_was_healed_passes_and_says_so(chain, run):
    spoil(run)
    assert chain("verify", "--repair-from", "copy", "--junit", "report.xml").code == 3
    cases = suite(Path("report.xml"))
    assert [case.classname for case in cases].count("chain.verify.healed") == 1
    assert not any(isinstance(each, Failure) for case in cases for each in case.result)


def test_a_repository_that_does_not_open_gives_a_file_with_an_error(chain, run):
    shutil.rmtree(run / "index")
    assert chain("verify", "--junit", "report.xml").code == 4
    (case,) = suite(Path("report.xml"))
    assert isinstance(case.result[0], Error) and "index" in case.result[0].message


def test_nothing_in_a_name_breaks_the_xml(tmp_path: Path):
    every = "".join(map(chr, [*range(0x300), 0xD800, 0xDFFF, 0xFFFD, 0xFFFE, 0xFFFF, 0x10FFFF])) + "]]><!--&amp;"
    report = VerifyReport("data", damaged=[Damage(every, "", (every,), (every,), "chunks", "ab", 3, every)])
    report.healed = [Damage(every, check="files")]
    write_junit(tmp_path / "report.xml", junit_of(report, 1.5))
    cases = suite(tmp_path / "report.xml")
    (failed,) = [case for case in cases if case.classname == "chain.verify.chunks"]
    told = failed.result[0].text
    assert "\\x00" in told and "\\ud800" in told and "\\uffff" in told and "]]><!--&amp;" in told and "\u00e9" in told
    write_junit(tmp_path / "report.xml", junit_of_error(every, 0.1))
    assert len(suite(tmp_path / "report.xml")) == 1


def test_the_file_has_the_form_of_the_schema_that_jenkins_publishes(chain, run):
    """junit-10.xsd: testsuites > testsuite > testcase > skipped | error | failure | system-out; these attributes."""
    packs(run)[0].unlink()
    chain("verify", "--read-data", "--junit", "report.xml")
    root = ElementTree.parse("report.xml").getroot()
    assert root.tag == "testsuites" and set(root.keys()) <= {"name", "time", "tests", "failures", "disabled", "errors"}
    for each in root:
        assert each.tag == "testsuite" and {"name", "tests"} <= set(each.keys())
        for case in each:
            assert case.tag == "testcase" and {"name", "classname"} <= set(case.keys())
            assert {inner.tag for inner in case} <= {"skipped", "error", "failure", "system-out"}
            assert all(set(inner.keys()) <= {"message", "type"} for inner in case)


def test_the_file_is_put_in_its_place_whole_or_not_at_all(chain, run, monkeypatch: pytest.MonkeyPatch):
    Path("report.xml").write_text("an older one")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    assert chain("verify", "--junit", "report.xml").code == 16
    assert Path("report.xml").read_text() == "an older one"
    assert [path.name for path in Path.cwd().iterdir() if "report" in path.name] == ["report.xml"]
