"""Sources: checkpoints of other tools, recognized, put in order, and read as a state with files beside it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from chainstore.cli.app import App
from chainstore.cli.commit import named_files
from chainstore.errors import InvalidInput
from chainstore.integrations.kinds import KINDS, recognize

AS_FILE = "file"
_READERS = {  # kind -> door and function that read it
    "torch": ("files", "read_torch"),
    "safetensors": ("safetensors", "read_safetensors"),
    "dcp": ("dcp", "read_dcp"),
    "numpy": ("arrays", "read_arrays"),
}
_STEP_KEYS = ("step", "global_step")


@dataclass(frozen=True, slots=True)
class Source:
    """One checkpoint.

    Attributes:
        path: where it is.  kind: one of KINDS, or AS_FILE.  step: from its name, None where that was not asked for.
        nbytes: on disk.
    """

    path: Path
    kind: str
    step: int | None
    nbytes: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a checkpoint holds, ready to be committed."""

    state: object
    files: dict[str, Path] = field(default_factory=dict)
    step: int | None = None
    epoch: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    notices: tuple[str, ...] = ()


def find_sources(paths: Sequence[Path], kind: str, *, as_file: bool, step_pattern: str | None) -> list[Source]:
    """Return what is to be read, each recognized, in the order of its steps or else as given.

    Args:
        kind: one of KINDS, or "auto".
        step_pattern: a regular expression whose first group is the step in a path.

    Raises:
        InvalidInput: one is no checkpoint (says what it looks like, and what takes it), or its name holds no step.
        UsageError: `step_pattern` is no such expression.
    """
    pattern = _compiled(step_pattern) if step_pattern is not None else None
    found = [
        Source(
            path,
            AS_FILE if as_file else _kind(path, kind),
            _step(path, pattern) if pattern is not None else None,
            sum(place.stat().st_size for _, place in named_files([path]) if place.is_file()),
        )
        for path in paths
    ]
    return sorted(found, key=lambda source: source.step or 0) if pattern is not None else found


def load_readers(app: App, sources: Sequence[Source]) -> None:
    """Load what reads the sources, so that the time it takes to start torch is not counted as theirs."""
    for kind in {source.kind for source in sources} - {AS_FILE}:
        app.door("hf" if kind == "hf" else _READERS[kind][0])


def load(app: App, source: Source) -> Loaded:
    """Read a checkpoint; tensors are mapped into memory where the format allows.

    Raises:
        InvalidInput: it is damaged, or holds objects that only unpickling could make.
    """
    if source.kind == AS_FILE:
        return Loaded({}, dict(named_files([source.path])), source.step)
    if source.kind == "hf":
        found = app.door("hf").read_hf(source.path)
        step = source.step if source.step is not None else found.step
        return Loaded(found.state, found.files, step, _whole(found.epoch), found.metrics, found.notices)
    door, function = _READERS[source.kind]
    state = getattr(app.door(door), function)(source.path)
    return Loaded(state, step=source.step if source.step is not None else _step_inside(state))


def _kind(path: Path, asked: str) -> str:
    if not path.exists():
        hint = f"to say what a path is: --kind {path}" if str(path) in (*KINDS, "auto") else ""
        raise InvalidInput(f"{path}: no such file or folder", hint=hint)
    look = recognize(path)
    if asked == "auto":
        if not look.kind:
            raise InvalidInput(f"{path} looks like {look.what}, which is no checkpoint", hint=_way_out(path, look.hint))
        return look.kind
    if path.is_dir() != (asked in ("dcp", "hf")):
        needed = "folders" if asked in ("dcp", "hf") else "files"
        raise InvalidInput(f"{path} looks like {look.what}; --kind {asked} takes {needed}", hint="leave --kind out")
    return asked


def _way_out(path: Path, hint: str) -> str:
    stored = f"`chain import --as-file {path}` stores it as it is"
    return f"{hint}; {stored}" if hint else stored


def _compiled(text: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise click.UsageError(f"--step-from-name {text!r} is no regular expression: {error}") from None
    if not pattern.groups:
        raise click.UsageError(f"--step-from-name {text!r} needs a group that holds the step, such as 'step_(\\d+)'")
    return pattern


def _step(path: Path, pattern: re.Pattern[str]) -> int:
    found = None
    for found in pattern.finditer(path.absolute().as_posix()):  # noqa: B007  the last one is the nearest to the name
        pass
    try:
        return int(found[1]) if found is not None else int("")
    except (ValueError, TypeError):
        raise InvalidInput(
            f"{path}: no step in its name", hint="--step-from-name takes 'step_(\\d+)' and the like"
        ) from (None)


def _step_inside(state: object) -> int | None:
    """Return the step that a state itself names at its top, as many training scripts write it."""
    if isinstance(state, dict):
        for key in _STEP_KEYS:
            value = state.get(key)
            if type(value) is int and value >= 0:
                return value
    return None


def _whole(epoch: float | None) -> int | None:
    return int(epoch) if epoch is not None else None
