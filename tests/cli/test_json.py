"""JSON: what every command prints with `--json` is what docs/reference/json.md says, no field more and none less."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

import chainstore as cs
from chainstore.cli.main import SECTIONS
from tests.cli.lines import EVERY, lay_out

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference" / "json.md"
COMMANDS = [name for section in SECTIONS.values() for name in section]
SECTION = re.compile(r"^## (\S+)\n.*?^```json\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHARED: dict[str, Any] = json.loads(REFERENCE.read_text().partition("```json\n")[2].partition("```")[0])


def closed(schema: Any) -> Any:
    """Return a schema that refuses every field it does not name."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(value) for key, value in schema.items()}
    return (
        {"additionalProperties": False, **inner} if inner.get("type") == "object" and "properties" in inner else inner
    )


SCHEMAS = {
    name: Draft202012Validator({**closed(SHARED), **closed(json.loads(body))})
    for name, body in SECTION.findall(REFERENCE.read_text())
}


def check(printed: str) -> dict[str, Any]:
    """Return the one object that was printed, once its schema allows it."""
    found = json.loads(printed)
    SCHEMAS[found.get("schema", "error")].validate(found)
    return found


@pytest.fixture
def furnished(repo: Path) -> Path:
    """The repository of conftest.py with one commit more that holds a bit of everything."""
    lay_out(repo.parent)
    state = {
        "w": np.zeros((2, 3), np.float32),
        "odd": np.array([np.nan, np.inf, 1]),
        "cfg": {"lr": 0.1, "nan": float("nan"), "set": {1, 2}},
        "part": {"a": np.ones(2), "b": np.ones(3)},
        "blob": b"\x00\xff",
    }
    with cs.open(repo) as opened:
        opened.commit(state, "everything", step=50, metrics={"loss": float("inf")}, files={"notes.txt": "notes.txt"})
        opened.commit({**state, "w": np.ones((2, 3), np.float32)}, "more", step=60, files={"notes.txt": "notes.txt"})
    return repo


def test_every_command_has_lines_that_work():
    assert list(EVERY) == [name for name in EVERY if name in COMMANDS] and set(EVERY) == set(COMMANDS)


def test_every_schema_that_is_printed_is_documented_and_no_other():
    sources = [path.read_text() for path in (ROOT / "chainstore" / "cli").glob("*.py")]
    printed = {name for source in sources for name in re.findall(r'"(chain\.[a-z-]+/\d+)"', source)}
    assert printed == set(SCHEMAS) - {"error"}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_documented_schema_is_one(name):
    Draft202012Validator.check_schema(SCHEMAS[name].schema)


@pytest.mark.parametrize("name", [name for name in COMMANDS if EVERY[name]])
def test_what_a_command_prints_follows_its_schema(chain, furnished, name):
    for line in EVERY[name]:
        done = chain(*line, "--json")
        assert done.code == 0, (line, done.out, done.err)
        found = check(done.out)
        if line[0] == name:
            assert found["schema"] == f"chain.{name}/1"


@pytest.mark.parametrize("name", COMMANDS)
def test_an_error_follows_its_schema(chain, place, name):
    for words in (["--frobnicate"], ["a", "b", "c", "d", "e"]):
        done = chain(name, *words, "--json")
        assert done.code != 0
        error = check(done.out)["error"]
        assert error["code"] and error["message"] and error["code"] != "internal"


def test_the_version_and_the_values_file_follow_their_schemas(chain, furnished):
    assert check(chain("--version", "--json").out)["version"]
    assert chain("checkout", "main", "-o", "out", "--format", "dir").code == 0
    check(Path("out/values.json").read_text())


def test_a_field_that_is_not_documented_is_noticed():
    with pytest.raises(Exception, match="extra"):
        check(json.dumps({"schema": "chain.version/1", "version": "1", "extra": 2}))
