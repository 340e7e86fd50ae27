"""`--help`: every command has it, with an example and the exit codes it can give; and all that is listed exists."""

import re
from importlib import import_module
from pathlib import Path

import pytest

import chainstore
from chainstore.cli.exits import MEANINGS
from chainstore.cli.main import DOORS, SECTIONS

COMMANDS = [name for section in SECTIONS.values() for name in section]
SOURCE = Path(chainstore.__file__).parent / "cli"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_and_its_exit_codes(chain, name):
    done = chain(name, "--help")
    assert done.code == 0 and "Example" in done.out and f"  chain {name}" in done.out.replace(" -C runs/gpt", "")
    codes = re.findall(r"^  (\d+) +\S", done.out.split("Exit codes:")[1], re.MULTILINE)
    assert {"0", "1", "2", "130"} <= set(codes) and set(codes) <= set(map(str, MEANINGS))


def test_the_front_page_lists_every_command_and_what_moves_what(chain):
    done = chain("--help")
    assert done.code == 0 and "What moves what" in done.out and "Example" in done.out
    for name in (*COMMANDS, "checkout REV -o OUT", "reset REV"):
        assert re.search(rf"^  {re.escape(name)} ", done.out, re.MULTILINE)
    for code, meaning in MEANINGS.items():
        assert re.search(rf"^  {code} +{re.escape(meaning)}", done.out, re.MULTILINE)


def test_every_module_with_a_command_is_listed():
    found = {path.stem.replace("_", "-") for path in SOURCE.glob("*.py") if "\ndef command(\n" in path.read_text()}
    found |= {path.stem.replace("_", "-") for path in SOURCE.glob("*.py") if "\ndef command(app" in path.read_text()}
    assert found == set(COMMANDS)


def test_every_door_opens_onto_a_module():
    for name in DOORS.values():
        assert (SOURCE.parent.parent / (name.replace(".", "/") + ".py")).exists()


def test_the_version_is_printed(chain):
    assert chain("--version").out == f"chain {chainstore.__version__}\n"
    assert chain("--json", "--version").json == {"schema": "chain.version/1", "version": chainstore.__version__}


def test_no_command_at_all_is_wrong_usage_and_shows_the_page(chain):
    done = chain()
    assert done.code == 2 and "What moves what" in done.err


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_takes_a_passphrase_as_its_value(name):
    command = import_module("chainstore.cli." + name.replace("-", "_")).command
    valued = [option for option in command.params if not getattr(option, "is_flag", False)]
    assert not [option.name for option in valued if "pass" in (option.name or "")]
