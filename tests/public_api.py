"""What users can call, one line for each name: `python -m tests.public_api > tests/public_api.txt`.

tests/test_public_api.py compares the file with the code, so that no signature and no error code changes unseen.
"""

import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import chainstore as cs
from chainstore.errors import ChainError

SPECIAL = ("__contains__", "__enter__", "__getitem__", "__iter__", "__len__", "__setitem__", "_repr_html_")
HANDED_OUT = (cs.Repository, cs.Snapshot)  # nobody calls these classes; what they are made of is ours
WIDTH = 120
MODULE_NAME = re.compile(r"\b(?:[a-z_]\w*\.)+(?=\w)")


class Named:
    """A default value that shows itself by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def signature(function: Any) -> str:
    """Return a signature without the names of modules, and without `self`."""
    found = inspect.signature(function)
    parameters = [
        each.replace(default=Named(each.default.__name__)) if inspect.isfunction(each.default) else each
        for each in found.parameters.values()
        if each.name != "self"
    ]
    return MODULE_NAME.sub("", str(found.replace(parameters=parameters)))


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public members that a class defines itself, as they stand in it, those of its fields left out."""
    for name, member in vars(kind).items():
        public = not name.startswith("_") or name in SPECIAL
        if public and (inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod)):
            yield name, member


def describe_member(name: str, member: Any) -> str:
    if isinstance(member, property):
        returned = signature(member.fget).partition(" -> ")[2]
        return f"{name}: {returned}"
    return name + signature(getattr(member, "__func__", member))


def describe_class(name: str, kind: type) -> Iterator[str]:
    made_by_users = not issubclass(kind, HANDED_OUT)
    yield f"class {name}" + (signature(kind).removesuffix(" -> None") if made_by_users else "")
    yield from (f"    {line}" for line in sorted(describe_member(*each) for each in members(kind)))


def errors() -> list[type[ChainError]]:
    """Return every error class of the package, whichever module defines it, each below its parent."""
    for module in pkgutil.walk_packages(cs.__path__, "chainstore."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: list[type[ChainError]] = []
    waiting: list[type[ChainError]] = [ChainError]
    while waiting:
        found.append(waiting.pop())
        ours = [kind for kind in found[-1].__subclasses__() if kind.__module__.startswith("chainstore.")]
        waiting += [kind for kind in sorted(ours, key=lambda kind: kind.__name__, reverse=True) if kind not in found]
    return list(dict.fromkeys(found))


def describe_errors() -> Iterator[str]:
    for kind in errors():
        depth = len([base for base in kind.__mro__ if issubclass(base, ChainError)]) - 1
        yield f"{'    ' * depth}{kind.__name__}: {kind.code}, exit {kind.exit_code}"


def lines() -> Iterator[str]:
    for name in cs.__all__:
        value = getattr(cs, name)
        if inspect.isclass(value) and not issubclass(value, ChainError):
            yield from describe_class(name, value)
        elif callable(value) and not inspect.isclass(value):
            yield name + signature(value)
        else:
            yield name
    yield ""
    yield from describe_errors()


def page() -> str:
    """Return all lines as text, long ones wrapped."""
    return "".join(f"{wrapped(line)}\n" for line in lines())


def wrapped(line: str) -> str:
    indent = " " * (len(line) - len(line.lstrip()) + 8)
    return textwrap.fill(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    print(page(), end="")
