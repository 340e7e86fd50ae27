"""Pages that say what the code says are in step with it."""

import inspect
import re
from pathlib import Path

import pytest
import yaml

import chainstore as cs
from chainstore import config, errors, settings
from chainstore.cli import exits
from tests.pages import DOCS, KINDS, PAGES
from tests.site import FOREIGN
from tests.test_docs import blocks, cells, error_classes

REFERENCE = DOCS / "reference"


def listed(page: str, section: str = "") -> list[list[str]]:
    """Return the rows of the tables of a page, or of one section of it, heads left out."""
    text = (REFERENCE / page).read_text()
    text = text.partition(f"{section}\n")[2].partition("\n## ")[0] if section else text
    return [row for row in cells(text) if row[0] not in ("exit", "variable", "key")]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_that_is_made_is_in_step(name: str):
    assert (DOCS / name).read_text() == PAGES[name](), "run `python -m tests.pages` and look at what it changed"


def test_the_python_reference_has_every_public_name_and_method_with_a_sentence():
    page = (REFERENCE / "python.md").read_text()
    for name in cs.__all__:
        assert name.startswith("__") or f"\n## {name}\n" in page, name
    for kind in (cs.Repository, cs.Snapshot):
        for method, member in vars(kind).items():
            if inspect.isfunction(member) and not method.startswith("_"):
                assert re.search(rf"^### {kind.__name__}\.{method}\n\n```py\n[^`]+```\n\n\w", page, re.M), method


def test_the_exit_codes_are_those_of_the_command_line_and_of_the_errors():
    rows = {int(row[0]): row for row in listed("exit-codes.md")}
    assert {code: rows[code][1] for code in exits.MEANINGS} == exits.MEANINGS
    known: dict[int, set[str]] = {}
    for kind in error_classes():
        known.setdefault(kind.exit_code, set()).add(kind.__name__)
    assert set(rows) == set(exits.MEANINGS) | set(known)
    for code, row in rows.items():
        if code != errors.ChainError.exit_code:
            assert set(re.findall(r"`(\w+)`", row[2])) == known.get(code, set()), code


def test_the_configuration_page_has_every_variable_and_no_other():
    variables = set(re.findall(r"(?<![A-Z_])CHAIN_[A-Z_]+(?![A-Z_{])", Path(config.__file__).read_text()))
    assert {f"CHAIN_{name.upper()}" for name, setting in settings.KNOWN.items() if not setting.own} <= variables
    rows = listed("configuration.md", "## Environment")
    assert {row[0].strip("`") for row in rows if row[0].startswith("`CHAIN")} == variables


def test_the_configuration_page_has_every_setting_of_the_user_and_no_other():
    of_keys = set(re.findall(r'_text\(settings, "(\w+)"\)', Path(config.__file__).read_text()))
    found = {row[0].strip("`") for row in listed("configuration.md", "## The user's settings")}
    assert of_keys and found == of_keys | {name for name, setting in settings.KNOWN.items() if not setting.own}


def test_the_citation_names_the_version_of_the_package():
    (text,) = [block.body for block in blocks(DOCS / "citation.md") if block.language == "yaml"]
    assert yaml.safe_load(text)["version"] == cs.__version__


def test_every_fragment_of_the_changelog_is_of_a_known_kind():
    fragments = list((DOCS / "changes").iterdir())
    assert fragments and all(re.fullmatch(rf"[\w-]+\.({'|'.join(KINDS)})\.md", path.name) for path in fragments)


def test_a_page_that_loads_something_from_elsewhere_is_noticed():
    assert FOREIGN.search('<script defer src="https://cdn.example/x.js">')
    assert not FOREIGN.search('<a href="https://example.org">') and not FOREIGN.search('<script src="_static/x.js">')


def test_the_workflow_is_one_that_github_would_read():
    (text,) = [block.body for block in blocks(DOCS / "guides" / "verify-in-ci.md") if block.language == "yaml"]
    workflow = yaml.safe_load(text)
    assert workflow[True] == {"schedule": [{"cron": "17 3 * * *"}], "workflow_dispatch": None}  # YAML's idea of `on`
    (job,) = workflow["jobs"].values()
    assert job["runs-on"] == ["self-hosted"] and all({"run", "uses"} & step.keys() for step in job["steps"])
