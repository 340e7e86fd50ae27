"""Refs: the names that people give to commits.

heads/<branch>    tags/<tag>    HEAD -> "heads/main", or a commit (detached)
"""

import re
from difflib import get_close_matches

from chainstore.errors import InvalidRefName

HEAD = "HEAD"
HEADS = "heads/"
TAGS = "tags/"
DEFAULT_BRANCH = "main"
_HEX = re.compile(r"[0-9a-fA-F]{7,64}")
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//")


def check_name(name: str, what: str = "branch") -> str:
    """Return `name` if it may name a branch or tag.

    The rules are git's, and a name must not look like another kind of revision.

    Raises:
        InvalidRefName: says which rule it breaks.
    """
    if not isinstance(name, str):
        raise InvalidRefName(f"a {what} name is text, not {type(name).__name__}")
    why = _broken_rule(name)
    if why:
        raise InvalidRefName(f"{name!r} cannot name a {what}: {why}")
    return name


def _broken_rule(name: str) -> str | None:
    if not name or name == "@":
        return "it is empty" if not name else "it is `@`"
    if name in (HEAD, "latest"):
        return "the word means something else"
    if _HEX.fullmatch(name):
        return "it looks like the id of a commit"
    found = _FORBIDDEN.search(name)
    if found:
        return f"it holds {found.group()!r}"
    if name.startswith(("/", "-")) or name.endswith(("/", ".", ".lock")):
        return f"it starts or ends with {name[0] if name[0] in '/-' else name[-1]!r}"
    if any(part.startswith(".") or part.endswith(".lock") for part in name.split("/")):
        return "a part of it starts with a dot or ends with .lock"
    return _broken_encoding(name)


def _broken_encoding(name: str) -> str | None:
    try:
        return "it is longer than 255 bytes" if len(name.encode()) > 255 else None
    except UnicodeEncodeError:
        return "it holds half a surrogate pair"


def branch_ref(name: str) -> str:
    """Return the full name of a branch."""
    return HEADS + check_name(name, "branch")


def tag_ref(name: str) -> str:
    """Return the full name of a tag."""
    return TAGS + check_name(name, "tag")


def short_name(ref: str) -> str:
    """Return how people call a ref: without `heads/` or `tags/`."""
    return ref.removeprefix(HEADS) if ref.startswith(HEADS) else ref.removeprefix(TAGS)


def nearest_names(name: str, names: list[str]) -> list[str]:
    """Return the names that `name` was probably meant to be, best first."""
    return get_close_matches(name, names, n=3, cutoff=0.5)
