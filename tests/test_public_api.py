"""The front door: what is public is listed, explained, typed, and does not change unseen."""

import ast
import dataclasses
import inspect
import re
import subprocess
import sys
import typing
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import chainstore as cs
from chainstore.crypto.keys import KeyProvider
from tests.public_api import errors, members, page

ROOT = Path(__file__).resolve().parent.parent
SNAPSHOT = ROOT / "tests" / "public_api.txt"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [name for name in cs.__all__ if name != "__version__"]
CLASSES = [kind for name in NAMES if inspect.isclass(kind := getattr(cs, name))]

# What public calls return or take, and nobody needs to name: handed out by one method and used where it is.
NEED_TORCH = {"SnapshotManager"}  # loaded when they are first named
UNNAMED = {
    "Argon2Cost",
    "Candidate",
    "Anomaly",
    "ArraySlice",
    "BranchHold",
    "Damage",
    "Entry",
    "FileContent",
    "KeyProvider",
    "KeySlot",
    "Leaf",
    "Loadable",
    "Manifest",
    "ManagerStats",
    "MarkLine",
    "Notice",
    "ObjectId",
    "Progress",
    "RebuildReport",
    "ReflogLine",
    "Rollback",
    "SafetensorsPlan",
    "Stats",
    "Status",
    "TensorDiff",
    "Usage",
    "ValueDiff",
    "Writer",
}


def test_every_public_name_resolves_to_one_and_the_same_object() -> None:
    for name in cs.__all__:
        assert getattr(cs, name) is getattr(cs, name), name
    assert list(cs.__all__) == sorted(cs.__all__) and len(set(cs.__all__)) == len(cs.__all__)
    assert dir(cs) == sorted(cs.__all__)


def test_the_door_is_closed() -> None:
    for name in ("Core", "flatten", "encode_commit", "repository_", "nothing"):
        with pytest.raises(AttributeError):
            getattr(cs, name)


def test_what_is_looked_up_later_is_what_type_checkers_see() -> None:
    tree = ast.parse((ROOT / "chainstore" / "__init__.py").read_text())
    (guard,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imported = {alias.name for node in guard.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported == set(NAMES)


def test_nothing_public_is_missing() -> None:
    """What public calls take and return is public itself, or on the list of what nobody needs to name."""
    found = {kind.__name__ for part in callables() for kind in ours(part)}
    assert found - set(NAMES) <= UNNAMED


def callables() -> list[Any]:
    """Return the public functions, and the public methods of public classes."""
    functions = [value for name in NAMES if inspect.isfunction(value := getattr(cs, name))]
    for kind in CLASSES:
        for _, member in members(kind):
            functions.append(member.fget if isinstance(member, property) else getattr(member, "__func__", member))
    return functions


def ours(function: Any) -> set[type]:
    """Return the classes of ours that stand in the annotations of a function."""
    waiting = list(inspect.get_annotations(function, eval_str=True).values())
    found: set[type] = set()
    while waiting:
        each = waiting.pop()
        waiting += [part for part in typing.get_args(each) if not isinstance(part, str)]
        if inspect.isclass(each) and each.__module__.startswith("chainstore"):
            found.add(each)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_explained(name: str) -> None:
    value = getattr(cs, name)
    first, _, rest = (inspect.getdoc(value) or "").partition("\n")
    assert len(first.split()) > 2 and first.endswith((".", ":")), f"{name}: {first!r}"
    assert not rest or rest.startswith("\n"), f"{name}: a blank line follows the first"


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_public_method_is_explained(kind: type) -> None:
    """Those of a seam are explained once, in its protocol."""
    for name, member in members(kind):
        text = inspect.getdoc(member) or inspect.getdoc(getattr(KeyProvider, name, None)) or ""
        assert len(text.split()) > 1, f"{kind.__name__}.{name}"


def fields_of(kind: type) -> list[str]:
    found = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    return [field.name for field in found if not field.name.startswith("_")]


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if fields_of(kind)], ids=lambda kind: kind.__name__)
def test_every_field_of_a_public_value_is_explained(kind: type) -> None:
    text = inspect.getdoc(kind) or ""
    assert [name for name in fields_of(kind) if not re.search(rf"\b{name}\b", text)] == []


@pytest.mark.parametrize("function", [cs.open, cs.init, cs.capture, cs.restore, cs.register], ids=lambda f: f.__name__)
def test_a_public_function_says_when_it_fails(function: Any) -> None:
    assert "Raises:" in (inspect.getdoc(function) or "")


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_in_the_documents(name: str) -> None:
    named = re.compile(rf"\bcs\.{name}\b|\bimport .*\b{name}\b|`{name}[`(]|^#+ {name}$", re.MULTILINE)
    assert any(named.search(document.read_text()) for document in DOCUMENTS), name


def test_no_signature_and_no_error_code_changes_unseen() -> None:
    """After a change that is meant: `python -m tests.public_api > tests/public_api.txt`."""
    assert page() == SNAPSHOT.read_text()


def test_every_error_has_a_code_and_an_exit_code_of_its_own() -> None:
    found = errors()
    codes = Counter(kind.code for kind in found)
    assert [code for code, times in codes.items() if times > 1] == []
    for kind in found:
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", vars(kind)["code"]), kind
        assert kind.exit_code in range(1, 126) and kind.exit_code != 2, kind
        assert "__doc__" in vars(kind) and kind.__doc__, kind


def test_every_error_of_the_tree_is_in_the_module_of_errors_or_below_a_class_that_is() -> None:
    for kind in errors():
        named = next(base for base in kind.__mro__ if base.__module__ == "chainstore.errors")
        assert getattr(cs.errors, named.__name__) is named


def test_the_front_door_loads_neither_torch_nor_numpy() -> None:
    code = (
        f"import sys, chainstore as cs; [getattr(cs, name) for name in {sorted(set(cs.__all__) - NEED_TORCH)!r}];"
        "print(sorted({'torch', 'numpy', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
