"""What the project's own files say about each other."""

import sys
from pathlib import Path

from tests.check import Part, check
from tests.check import parts as everything_to_check

ROOT = Path(__file__).resolve().parent.parent


def one_line_commands():
    lines = (ROOT / "README.md").read_text().splitlines()
    return [line for line in lines if line.startswith("python3 -m venv")]


def test_the_readme_gives_two_one_line_commands():
    demo, check = one_line_commands()
    assert demo.endswith("chain demo")
    assert check.endswith("-m tests.check")


def test_continuous_integration_runs_exactly_the_command_that_the_readme_gives():
    _, check = one_line_commands()
    script = (ROOT / ".ci" / "run").read_text().splitlines()
    assert script[-1] == check
    assert "export CI=true" in script


def command(code):
    return (sys.executable, "-c", code)


def test_the_check_stops_at_the_first_failure_and_shows_what_it_said(capsys):
    parts = [
        Part("good", command("")),
        Part("bad", command("print('what went wrong'); raise SystemExit(1)")),
        Part("after", command("")),
    ]
    assert not check(parts, keep_going=False)
    told = capsys.readouterr().out
    assert "what went wrong" in told
    assert "after" not in told


def test_the_check_is_good_only_if_every_part_is(capsys):
    assert check([Part("good", command("")), Part("good too", command(""))], keep_going=False)
    assert not check([Part("bad", command("raise SystemExit(2)")), Part("good", command(""))], keep_going=True)


def test_the_check_runs_the_cheap_parts_first_and_every_folder_of_tests():
    names = [part.name for part in everything_to_check()]
    assert names[:4] == ["format", "lint", "types", "architecture"]
    folders = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").glob("*/**/test_*.py")}
    assert folders <= set(names)
