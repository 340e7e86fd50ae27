"""The reference of the command line, made from the commands themselves: `python -m tests.cli.reference` writes it."""

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from chainstore.cli.exits import ALWAYS, MEANINGS
from chainstore.cli.main import GROUP, MOVES, SECTIONS

PLACE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "command-line.md"
HEAD = """\
# Command line

<!-- made by `python -m tests.cli.reference` from the commands themselves -->

`chain COMMAND --help` prints what stands here. Results go to standard output, everything else to standard error; with
`--json` the result is one [JSON object](json.md). Every way to end has its [exit code](exit-codes.md). What can be set
beforehand is in [Configuration](configuration.md). `python -m chainstore.cli.main` is another way to say `chain`.

A revision REV is a branch, a tag, HEAD, `latest`, the first 7 or more digits of an id, `step:1200`, `min:loss` or
`max:acc`; each may be followed by `~3`, `^2`, `@{1}` or `@{2h ago}`. In a GLOB `*` stands for one key of a path or a
piece of one, `**` for any number of keys.
"""


def render() -> str:
    """Return the whole document."""
    return "\n".join(_lines()).rstrip() + "\n"


def _lines() -> Iterator[str]:
    yield HEAD
    yield "## For every command\n"
    yield "These may stand before the command or after it.\n"
    yield from _options(GROUP.params)
    yield f"What moves what:\n\n```text\n{MOVES.rstrip()}\n```\n"
    for title, commands in SECTIONS.items():
        yield f"## {title}\n"
        for name in commands:
            command = GROUP.get_command(click.Context(GROUP), name)
            assert command is not None
            yield from _command(f"chain {name}", command, 3)


def _command(path: str, command: click.Command, level: int) -> Iterator[str]:
    yield f"{'#' * level} {path}\n"
    usage = " ".join(command.collect_usage_pieces(click.Context(command)))
    yield f"```text\n{path} {usage}\n```\n"
    yield from _description(inspect.cleandoc(command.help or ""))
    yield from _options([each for each in command.params if isinstance(each, click.Option) and not each.hidden])
    yield "<!-- not run: examples of files that are not here -->"
    yield "```sh\n" + "\n".join(command.examples) + "\n```\n"  # type: ignore[attr-defined]
    codes = sorted(set(command.codes) - set(ALWAYS))  # type: ignore[attr-defined]
    if codes:
        yield "Also ends with " + ", ".join(f"{code} ({MEANINGS[code]})" for code in codes) + ".\n"
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from _command(f"{path} {name}", below, level + 1)


def _description(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text; what is not to be wrapped becomes a block."""
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("\b\n"):
            yield "```text\n" + paragraph[2:] + "\n```\n"
        else:
            yield paragraph + "\n"


def _options(parameters: Sequence[click.Parameter]) -> Iterator[str]:
    options = [each for each in parameters if isinstance(each, click.Option)]
    if options:
        yield "| option | what it does |\n|---|---|"
        for option in options:
            names, text = option.get_help_record(click.Context(GROUP)) or ("", "")
            yield f"| `{names.replace('|', chr(92) + '|')}` | {text.replace('|', chr(92) + '|')} |"
        yield ""


if __name__ == "__main__":
    PLACE.write_text(render())
