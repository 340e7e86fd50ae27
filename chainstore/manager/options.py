"""Options: what a manager was asked to be, checked before anything is opened; older call styles among them."""

import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from chainstore import config
from chainstore.errors import InvalidInput
from chainstore.manager.worktree import GIT_DIFF
from chainstore.model.paths import Path as Keys
from chainstore.model.paths import compile_glob
from chainstore.policies.interval_texts import parse_interval
from chainstore.policies.progress import Trigger
from chainstore.policies.retention import Retention
from chainstore.policies.triggers import as_trigger
from chainstore.repository import Repository

Mode = Literal["process", "thread", "sync"]
WhenFull = Literal["skip", "wait", "raise"]
OnError = Literal["warn", "raise"]
DEFAULT_INTERVAL = "10m"
DEFAULT_PATH = "snapshots"
_MOST_PENDING = 8
_PROJECT = re.compile(r"[\w.-]{1,200}")
_OLDER = ("snapshot_dir", "project_id", "api_key", "save_interval", "encryption")


@dataclass(frozen=True, slots=True)
class Where:
    """What a manager opens: a repository, or a path; encrypted or not where it is made."""

    repo: Repository | Path
    encrypt: bool = True


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse what is not one of `choices`."""
    if value not in choices:
        raise InvalidInput(f"{name} is {', '.join(choices[:-1])} or {choices[-1]}, not {value!r}")


def check_pending(value: object) -> int:
    """Return a number of captures that may be pending."""
    if type(value) is not int or not 1 <= value <= _MOST_PENDING:
        raise InvalidInput(f"max_pending is a number from 1 to {_MOST_PENDING}, not {value!r}")
    return value


def make_trigger(interval: int | str | None, triggers: Sequence[Trigger] | None) -> Trigger:
    """Return what says that a snapshot is due.

    Raises:
        InvalidInput: both are given, or the interval makes no sense.
    """
    if triggers is not None:
        if interval is not None:
            raise InvalidInput("give an interval or triggers, not both")
        return as_trigger(triggers)
    return parse_interval(DEFAULT_INTERVAL if interval is None else interval)


def make_retention(max_snapshots: int | None, retention: Retention | None) -> Retention | None:
    """Return which snapshots stay; None for all of them.

    Raises:
        InvalidInput: both are given, or the number makes no sense.
    """
    if max_snapshots is None:
        return retention
    if retention is not None:
        raise InvalidInput("give max_snapshots or retention, not both", hint="Retention(last=20, ...) says both")
    return Retention(last=max_snapshots)


def frozen_paths(globs: Iterable[str]) -> "FrozenPaths":
    """Return what tells paths of arrays that never change."""
    if isinstance(globs, str):
        raise InvalidInput(f"frozen is a list of globs, not the text {globs!r}")
    return FrozenPaths(tuple(globs))


class FrozenPaths:
    """Tells paths that match one of some globs."""

    def __init__(self, globs: Sequence[str]) -> None:
        self._matches = [compile_glob(glob) for glob in globs]

    def __call__(self, path: Keys) -> bool:
        return any(matches(path) for matches in self._matches)


def files_by_name(paths: Iterable[str | os.PathLike[str]]) -> dict[str, str]:
    """Return name -> absolute path of files to store beside the state.

    Raises:
        InvalidInput: two have one name, or one has that of the difference of the work tree.
    """
    found: dict[str, str] = {}
    for path in map(Path, paths):
        if path.name == GIT_DIFF:
            raise InvalidInput(f"{GIT_DIFF!r} is what the diff of the work tree is called", hint="rename the file")
        if path.name in found:
            raise InvalidInput(f"two files are called {path.name!r}")
        found[path.name] = str(path.absolute())
    return found


def where_to(repo: Repository | str | os.PathLike[str] | None, older: Mapping[str, Any]) -> Where:
    """Return what to open.

    Args:
        older: arguments of call styles that are copied widely: `snapshot_dir` for the path; or `project_id`, a name
            below CHAIN_HOME, with `encryption`, and an `api_key` that nothing uses yet.
    """
    unknown = sorted(set(older) - set(_OLDER))
    if unknown:
        raise TypeError(f"SnapshotManager got an unexpected keyword argument {unknown[0]!r}")
    named = [repo, older.get("snapshot_dir"), older.get("project_id")]
    if sum(name is not None for name in named) > 1:
        raise InvalidInput("name one repository: a path, snapshot_dir= or project_id=")
    if isinstance(repo, Repository):
        return Where(repo)
    if older.get("api_key") is not None:
        warnings.warn("api_key is unused: there is no server to send it to", RuntimeWarning, stacklevel=4)
    encrypt = bool(older.get("encryption", True))
    project = older.get("project_id")
    if project is not None:
        return Where(_project_path(project), encrypt)
    path = repo if repo is not None else older.get("snapshot_dir") or DEFAULT_PATH
    return Where(Path(path).expanduser(), encrypt)


def _project_path(project: object) -> Path:
    if not isinstance(project, str) or not _PROJECT.fullmatch(project) or project in (".", ".."):
        raise InvalidInput(f"project_id is a name of letters, digits, dots and dashes, not {project!r}")
    return config.chain_home() / project
