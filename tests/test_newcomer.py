"""Somebody new, with what README and guides say: from files of their own to a job that verifies each night."""

import json
import re
from pathlib import Path

import pytest
import torch
import yaml
from junitparser import JUnitXml
from safetensors.torch import load_file

from chainstore.cli import exits
from tests.test_docs import ROOT, Block, Terminal, blocks, run_console

READ = ("README.md", "docs/tutorial.md", "docs/guides/rollback.md", "docs/guides/verify-in-ci.md")
DAY = """\
$ chain init
repository  ...
next        chain commit ...
$ chain commit epoch1.pt -m "first epoch" --step 100 --metric loss=0.9
$ chain commit epoch2.pt -m "second epoch" --step 200 --metric loss=0.5
$ chain commit epoch3.pt -m "third epoch" --step 300 --metric loss=nan
$ chain log
ID  step 300  loss nan  ...  (HEAD -> main)  third epoch
ID  step 200  loss 0.5  ...  second epoch
ID  step 100  loss 0.9  ...  first epoch
$ chain diff step:200 main --fail-on nan || echo "exit code $?"
nan: model/weight: ...
exit code 5
$ chain rollback --to min:loss --reason "third epoch is NaN"
main is back at ...
$ chain log -n 1
ID  step 200  loss 0.5  ...  second epoch
$ chain checkout main -o model.safetensors
1 file written to model.safetensors (...)
"""


def epoch(number: int) -> dict[str, object]:
    torch.manual_seed(number)
    weight = torch.randn(64, 32) if number < 3 else torch.full((64, 32), torch.nan)
    return {"model": {"weight": weight, "bias": torch.zeros(64)}, "epoch": number}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with three checkpoints, as a training script of today leaves them."""
    monkeypatch.chdir(tmp_path)
    for number in (1, 2, 3):
        torch.save(epoch(number), f"epoch{number}.pt")
    return tmp_path


def job() -> list[tuple[dict[str, str], str]]:
    """Return environment and script of every step of the workflow in the guide."""
    (text,) = [block.body for block in blocks(ROOT / "docs/guides/verify-in-ci.md") if block.language == "yaml"]
    (only,) = yaml.safe_load(text)["jobs"].values()
    assert [step["with"]["path"] for step in only["steps"] if "uses" in step] == ["report.xml"]
    return [(step.get("env", {}), step["run"]) for step in only["steps"] if "run" in step]


def nightly(terminal: Terminal, secrets: dict[str, str], folder: Path) -> None:
    """Run the steps of the workflow as a runner does: each in a shell of its own, GITHUB_ENV read after each."""
    folder.mkdir()
    given = folder / "given"
    given.touch()
    terminal.environment |= {"RUNNER_TEMP": str(folder), "GITHUB_ENV": str(given), "CHAIN_REPO": ".chain"}
    for own, script in job():
        before = dict(terminal.environment)
        names = {name: re.fullmatch(r"\$\{\{ secrets\.(\w+) \}\}", value)[1] for name, value in own.items()}
        terminal.environment |= {name: secrets[secret] for name, secret in names.items()}
        terminal.run(script)
        terminal.environment = before | dict(line.split("=", 1) for line in given.read_text().splitlines())


def test_a_new_user_commits_looks_back_rolls_back_and_takes_the_weights_out(place: Path):
    run_console(Terminal(), Block("", "console", DAY, 1))
    good = epoch(2)
    exported = load_file("model.safetensors")
    assert set(exported) == {"weight", "bias"} and torch.equal(exported["weight"], good["model"]["weight"])


def set_clock(terminal: Terminal, folder: Path, weekday: int) -> None:
    """Let `date +%u` print a day of the week, 1 for Monday."""
    folder.mkdir(exist_ok=True)
    script = folder / "date"
    script.write_text(f'#!/bin/sh\ntest "$*" = +%u && echo {weekday}\n')
    script.chmod(0o755)
    path = terminal.environment["PATH"].removeprefix(f"{folder}:")
    terminal.environment["PATH"] = f"{folder}:{path}"


def test_the_job_of_the_guide_is_quiet_about_a_good_repository_and_within_a_week_fails_on_a_damaged_one(
    place: Path, own_settings: Path
):
    terminal = Terminal()
    terminal.run("chain init && chain commit epoch1.pt --step 100")
    key = terminal.run("chain key export").split()[-1]
    own_settings.joinpath("user.key").unlink(missing_ok=True)  # the runner has only the secret
    (place / ".chain" / "user.key").unlink(missing_ok=True)
    set_clock(terminal, place / "bin", 1)
    nightly(terminal, {"CHAIN_KEY": key}, place / "first night")
    assert json.loads(Path("report.json").read_text())["ok"] is True
    assert JUnitXml.fromfile("report.xml").failures == 0
    assert not list((place / "first night").glob("*.key"))

    (pack,) = (place / ".chain" / "packs").glob("*/*")
    data = bytearray(pack.read_bytes())
    data[120] ^= 1
    pack.write_bytes(data)
    failed = []
    for weekday in range(1, 8):
        set_clock(terminal, place / "bin", weekday)
        before = dict(terminal.environment)
        try:
            nightly(terminal, {"CHAIN_KEY": key}, place / f"night {weekday}")
        except AssertionError as error:
            assert f"exit code {exits.DAMAGE} " in str(error)
            terminal.environment = before
            failed.append(json.loads(Path("report.json").read_text()))
            assert JUnitXml.fromfile("report.xml").failures == len(failed[-1]["damaged"])
    (report,) = failed
    assert report["ok"] is False and report["damaged"][0]["paths"]


def test_what_the_new_user_types_is_in_the_documents():
    told = "\n".join((ROOT / name).read_text() for name in READ)
    for command in {line.split()[2] for line in DAY.splitlines() if line.startswith("$ chain ")}:
        assert f"chain {command}" in told, command
    for option in set(re.findall(r" (--?[a-z]\S*)", DAY)):
        assert option in told, option
