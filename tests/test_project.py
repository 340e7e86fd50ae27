"""What the project's own files say about each other."""

from pathlib import Path

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
