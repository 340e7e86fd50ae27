"""The types that users see: their scripts check with `mypy --strict`, and mistakes are found."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "tests" / "typing" / "script.py"

MISTAKES = """
import torch
import chainstore as cs

repo = cs.open(3)  # wrong
repo.commit({}, step="1200")  # wrong
repo.commit({}, metric={"loss": 1.0})  # wrong
repo["main"].load_into(torch.ones(3))  # wrong
repo["main"].load_into(torch.nn.Linear(1, 1), rng="yes")  # wrong
text: str = repo.head  # wrong
cs.capture({"a": 1})  # wrong
cs.restore(repo["main"], torch.nn.Linear(1, 1))  # wrong
result: cs.LoadResult = cs.restore({}, torch.nn.Linear(1, 1))
result.step = 3  # wrong
cs.nothing  # wrong
step: int = repo.get_commit("main").step  # wrong
"""


def mypy(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_a_script_of_a_user_is_fully_typed() -> None:
    done = mypy(str(SCRIPT))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "type: ignore" not in SCRIPT.read_text()


def test_mistakes_in_a_script_are_found(tmp_path: Path) -> None:
    script = tmp_path / "mistakes.py"
    script.write_text(MISTAKES)
    done = mypy(str(script))
    found = {int(number) for number in re.findall(r"mistakes\.py:(\d+): error", done.stdout)}
    wrong = {number for number, line in enumerate(MISTAKES.splitlines(), 1) if line.endswith("# wrong")}
    assert found == wrong, done.stdout + done.stderr
