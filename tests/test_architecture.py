"""The floors: who may import whom, where, and which package is the home of each third-party library.

`complaints(source, path)` is the whole checker, a pure function of a module's text and its place, so that the tests
below can also show it wrong modules and see it complain.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import product
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "chainstore"
SOURCE = ROOT / PACKAGE
MODULES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))

FLOORS = [  # ground floor first; a module imports from earlier rows and from its own package
    {"errors"},
    {"ids", "observe", "display"},
    {"config", "limits"},
    {"model", "codecs", "crypto", "policies", "metrics"},
    {"storage", "state"},
    {"refs", "leases"},
    {"odb"},
    {"ops"},
    {"access", "lazy", "settings"},
    {"live", "repository"},
    {"dist"},
    {"manager", "supervisor"},
    {"__init__", "snapshot"},
    {"server", "integrations", "testing", "demo"},
    {"cli"},
    {"__main__"},
]
FLOOR = {name: height for height, names in enumerate(FLOORS) for name in names}
FACE = FLOOR["access"]  # the lowest of its rooms
BELOW_DOORS = {"storage", "state", "odb", "refs", "leases", "ops"}  # what drivers, doors and the command line never see
SEE_ALL = {"testing"}
RE_EXPORTS = {("__init__", "state")}  # the front door names `register` where it is defined

# Loaded on first use, because they need torch or numpy: nothing else imports them at the top of a file.
ON_FIRST_USE = ["codecs/*", "state/*_adapter.py", "state/torch_*.py", "state/numpy_*.py", "state/staging.py"]
ON_FIRST_USE += ["state/host.py", "ops/diff.py", "ops/link_*.py"]
AT_START = ["codecs/__init__.py", "codecs/thrift.py", "codecs/base.py", "codecs/chain.py", "codecs/adam_parameters.py"]
# Who may load a module on first use (importlib): adapter, generator, codec, meter, bucket, a command, a public name.
LOADERS = [
    "state/adapters.py",
    "state/value_libraries.py",
    "state/rng.py",
    "codecs/chain.py",
    "ops/comparison.py",
    "ops/deltas.py",
    "ops/linking.py",
    "storage/bucket.py",
    "cli/main.py",
    "__init__.py",
]

DOORS_WITH_TORCH = ["manager/*", "dist/*", "integrations/*", "demo/*", "testing/*"]
HOMES = {
    "torch": ["state/torch_*.py", "state/staging.py", *DOORS_WITH_TORCH],
    "numpy": [*ON_FIRST_USE, *DOORS_WITH_TORCH],  # less AT_START
    "lmdb": ["storage/index.py"],
    "obstore": ["storage/objects.py"],
    "zstandard": ["codecs/zstd.py"],
    "cryptography": ["crypto/*"],
    "blake3": ["ids.py"],
    "google_crc32c": ["model/frame.py"],
    "cbor2": ["model/wire.py"],
    "click": ["cli/*"],
    "rich": ["cli/*", "demo/*"],
    "platformdirs": ["config.py"],
    "hypothesis": ["testing/*"],
    "pytest": ["testing/*"],
}
NOWHERE = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}  # a snapshot is data, never code


@dataclass(frozen=True, slots=True)
class Import:
    """One module that a file imports: its absolute dotted name, the line, and how it stands there."""

    name: str
    line: int
    at_top: bool
    relative: bool = False

    @property
    def library(self) -> str:
        return self.name.partition(".")[0]


def within(path: str, patterns: list[str]) -> bool:
    return any(fnmatch(path, pattern) for pattern in patterns)


def waits(path: str) -> bool:
    """Tell whether a module is loaded on first use only."""
    return within(path, ON_FIRST_USE) and not within(path, AT_START)


def unit_of(path: str) -> str:
    """Return the room a file belongs to: its package, or its own name where it stands alone."""
    return Path(path).with_suffix("").parts[0]


def file_of(name: str) -> str:
    """Return the path a dotted name below the package would have as a module."""
    return "/".join(name.split(".")[1:]) + ".py"


def is_typing_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def top_statements(tree: ast.Module) -> set[ast.AST]:
    """Return the statements that stand at the top: the module's body, and what `if TYPE_CHECKING:` guards there."""
    guarded = (inner for node in tree.body if is_typing_guard(node) for inner in node.body)  # type: ignore[attr-defined]
    return {*tree.body, *guarded}


def from_names(node: ast.ImportFrom, path: str) -> list[str]:
    """Return the dotted names `from x import a, b` may mean, `x.a` where x is a package of ours."""
    base = node.module or ""
    if node.level:
        parents = [PACKAGE, *Path(path).parent.parts]
        base = ".".join([*parents[: len(parents) - node.level + 1], *([base] if base else [])])
    if base == PACKAGE:
        return [f"{PACKAGE}.{alias.name if alias.name in FLOOR else '__init__'}" for alias in node.names]
    if base.startswith(f"{PACKAGE}."):
        return [f"{base}.{alias.name}" for alias in node.names]
    return [base]


def imports(tree: ast.Module, path: str) -> Iterator[Import]:
    """Yield every import statement of a module, wherever it hides."""
    top = top_statements(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = f"{PACKAGE}.__init__" if alias.name == PACKAGE else alias.name
                yield Import(name, node.lineno, node in top)
        elif isinstance(node, ast.ImportFrom):
            for name in from_names(node, path):
                yield Import(name, node.lineno, node in top, relative=node.level > 0)


def loads(tree: ast.Module) -> Iterator[Import]:
    """Yield what a module can load through importlib: every string in it that looks like a module of ours."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = re.fullmatch(rf"({PACKAGE}\.[a-z_0-9.]+?)\.?", node.value)
            if found:
                yield Import(found[1], node.lineno, at_top=True)


def uses_import_machinery(tree: ast.Module) -> list[int]:
    """Return the lines that load modules by other means than an import statement."""
    names = {"import_module", "__import__"}
    return [
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Name) and node.id in names) or (isinstance(node, ast.Attribute) and node.attr in names)
    ]


def reads_environment(tree: ast.Module) -> list[int]:
    named = {"os.environ", "os.getenv", "os.environb", "os.putenv"}
    lines = [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Attribute) and ast.unparse(n) in named]
    froms = (n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module == "os")
    return lines + [n.lineno for n in froms if {alias.name for alias in n.names} & {"environ", "getenv"}]


def may_see(unit: str, target: str) -> str:
    """Return why a module of `unit` must not import from `target`, "" if it may."""
    if unit == target:
        return ""
    if target not in FLOOR or unit not in FLOOR:
        return f"{target if target not in FLOOR else unit} has no floor yet; give it one in FLOORS"
    if FLOOR[target] >= FLOOR[unit]:
        return f"{unit} may not import {target}, which does not stand on a lower floor"
    if (
        FLOOR[unit] > FLOOR["repository"]
        and target in BELOW_DOORS
        and unit not in SEE_ALL
        and (unit, target) not in RE_EXPORTS
    ):
        return f"{unit} sees the face, the words and the matter, not {target}"
    if target == "config" and FLOOR[unit] < FACE:
        return f"config is called by the face and above, not by {unit}"
    return ""


def why_not(found: Import, path: str) -> str:
    """Return what is wrong with one import in the file at `path`, "" if nothing is."""
    if not found.at_top:
        return "an import inside a function or a block; imports stand at the top of the file"
    if found.relative:
        return "a relative import; we import by absolute name"
    if found.library != PACKAGE:
        if found.library in NOWHERE:
            return f"{found.library} has no place here"
        at_home = within(path, HOMES.get(found.library, ["*"]))
        if not at_home or (found.library == "numpy" and within(path, AT_START)):
            return f"{found.library} is at home in {', '.join(HOMES[found.library])}"
        return ""
    target = found.name.split(".")[1]
    return may_see(unit_of(path), target)


def loaded_too_early(found: Import, path: str) -> str:
    """Return why a module that waits for its first use must not be imported at the top of `path`, "" if it may."""
    parts = found.name.split(".")
    modules = [file_of(".".join(parts[:end])) for end in range(3, len(parts) + 1)]
    late = any(waits(module) and (SOURCE / module).exists() for module in modules)
    if found.library != PACKAGE or not late or waits(path) or unit_of(path) in SEE_ALL:  # what waits may load others
        return ""
    return f"{found.name} is loaded on first use only, through {', '.join(LOADERS)}"


def complaints(source: str, path: str) -> list[str]:
    """Return everything that the module `source` at `path` (below the package) does against the house rules."""
    tree = ast.parse(source)
    found = [(each.line, why_not(each, path) or loaded_too_early(each, path)) for each in imports(tree, path)]
    if within(path, LOADERS):
        found += [(each.line, why_not(each, path)) for each in loads(tree)]
    else:
        found += [(line, "loads a module by name, which only LOADERS may") for line in uses_import_machinery(tree)]
    if path != "config.py":
        found += [(line, "reads the environment, which only config.py does") for line in reads_environment(tree)]
    return [f"{path}:{line}: {why}" for line, why in sorted(found) if why]


@pytest.mark.parametrize("path", MODULES)
def test_a_module_keeps_the_house_rules(path):
    assert complaints((SOURCE / path).read_text(), path) == []


def test_every_room_has_a_floor():
    assert {unit_of(path) for path in MODULES} <= set(FLOOR)


IMPORT_FORMS = [
    "import chainstore.{0}.thing",
    "import chainstore.{0} as it",
    "from chainstore import {0}",
    "from chainstore.{0} import thing",
    "from chainstore.{0}.deep.module import thing",
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from chainstore.{0} import thing",
    "from ..{0} import thing",
    "from .. import {0}",
]


@pytest.mark.parametrize(("form", "target"), list(product(IMPORT_FORMS, ["storage", "crypto", "repository", "cli"])))
def test_no_form_of_import_goes_up_or_sideways(form, target):
    assert complaints(form.format(target), "codecs/anything.py")


@pytest.mark.parametrize("form", IMPORT_FORMS[:6])
def test_every_absolute_form_of_import_goes_down(form):
    assert complaints(form.format("model"), "storage/anything.py") == []


WRONG = {
    "a function hides an import": ("def f():\n    import json\n", "model/wire.py"),
    "a block hides an import": ("try:\n    import json\nexcept ImportError:\n    pass\n", "model/wire.py"),
    "a door looks under the face": ("from chainstore.odb.database import ObjectDatabase\n", "manager/manager.py"),
    "the command line looks under the face": ("from chainstore.ops import gc\n", "cli/gc.py"),
    "the engine asks for the configuration": ("from chainstore.config import now\n", "ops/commit.py"),
    "the engine goes through the front door": ("from chainstore import Repository\n", "ops/commit.py"),
    "the engine imports the package": ("import chainstore as cs\n", "ops/commit.py"),
    "torch leaves its home": ("import torch.nn\n", "state/flatten.py"),
    "torch hides behind typing": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n",
        "ops/commit.py",
    ),
    "numpy is needed at start": ("import numpy as np\n", "codecs/chain.py"),
    "a library leaves its home": ("from zstandard import ZstdCompressor\n", "storage/pack.py"),
    "the torch adapter is needed at start": (
        "from chainstore.state.torch_adapter import TorchAdapter\n",
        "state/flatten.py",
    ),
    "the torch adapter is imported as a module": ("from chainstore.state import torch_adapter\n", "repository/face.py"),
    "a codec is needed at start": ("import chainstore.codecs.planes\n", "codecs/chain.py"),
    "a module is loaded by name": ("from importlib import import_module\nimport_module('json')\n", "ops/commit.py"),
    "a module is loaded by __import__": ("json = __import__('json')\n", "ops/commit.py"),
    "a loader reaches upwards": (
        "from importlib import import_module\nimport_module('chainstore.ops.commit')\n",
        "state/adapters.py",
    ),
    "pickle is used": ("import pickle\n", "state/values.py"),
    "the environment is read": ("import os\nHOME = os.environ['HOME']\n", "storage/fs.py"),
    "the environment is read by another name": ("from os import environ\n", "storage/fs.py"),
    "a room has no floor": ("import json\nfrom chainstore.attic import thing\n", "ops/commit.py"),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_checker_complains_when(name):
    assert complaints(*WRONG[name])


def test_nothing_that_starts_up_loads_torch_numpy_or_rich():
    starting = [
        f"{PACKAGE}.{path.removesuffix('.py').replace('/', '.').removesuffix('.__init__')}"
        for path in MODULES
        if FLOOR.get(unit_of(path), len(FLOORS)) <= FLOOR["repository"] and not waits(path)
    ]
    program = f"""
import importlib, sys
for name in {starting!r}:
    importlib.import_module(name)
    heavy = sorted({{"torch", "numpy", "rich"}} & set(sys.modules))
    assert not heavy, f"importing {{name}} loads {{heavy}}"
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
