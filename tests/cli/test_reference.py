"""The reference of the command line says what the commands say of themselves."""

import re

import click
import pytest

from chainstore.cli.main import GROUP, SECTIONS
from tests.cli.reference import PLACE, render

COMMANDS = [name for section in SECTIONS.values() for name in section]


def test_the_reference_is_what_the_commands_say():
    assert PLACE.read_text() == render(), "`python -m tests.cli.reference` makes it anew"


def every_command(path: str, command: click.Command) -> list[tuple[str, click.Command]]:
    found = [(path, command)]
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            below = command.get_command(click.Context(command), name)
            assert below is not None
            found += every_command(f"{path} {name}", below)
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_in_the_reference(name):
    text = PLACE.read_text()
    top = GROUP.get_command(click.Context(GROUP), name)
    assert top is not None
    for path, command in every_command(f"chain {name}", top):
        found = re.search(rf"^#+ {re.escape(path)}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
        assert found, path
        shown = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
        for option in shown:
            assert all(re.search(rf"`.*{re.escape(word)}\b", found[1]) for word in option.opts), (path, option.opts)
            assert option.help, (path, option.opts)
        assert path in found[1].partition("```sh")[2], f"{path} has no example of its own"


def test_every_global_option_is_in_the_reference():
    for option in GROUP.params:
        assert all(f"{word}" in PLACE.read_text() for word in option.opts)
