"""Formats: what each way of writing a snapshot makes of it, as files that are written one after the other."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from chainstore.cli.app import App
from chainstore.cli.folder import Part
from chainstore.cli.records import plain_json
from chainstore.cli.wording import count
from chainstore.errors import PathNotFound
from chainstore.lazy import Snapshot
from chainstore.manager.worktree import GIT_DIFF
from chainstore.model.paths import Path as Keys
from chainstore.model.paths import compile_glob, format_path, parse_path

_BY_SUFFIX = {
    ".pt": "torch",
    ".pth": "torch",
    ".bin": "torch",
    ".ckpt": "torch",
    ".npz": "npz",
    ".safetensors": "safetensors",
}
SHARD_SIZE = "5GB"
FOLDERS = ("dir", "hf")  # formats that write a folder
_ROLES = {"model": "model", "adapter": "adapter_model"}  # what hf writes -> stem of its files


@dataclass(frozen=True, slots=True)
class Choice:
    """What of a snapshot is written, and how.

    Attributes:
        select, exclude: globs over paths and names of files; no `select` means what is usual for the format.
        dtype: type of floating-point tensors in safetensors and hf, None for theirs.
        shard_size: the most in one file of hf.
    """

    select: Sequence[str] = ()
    exclude: Sequence[str] = ()
    dtype: str | None = None
    shard_size: str = SHARD_SIZE


def format_of(output: Path) -> str:
    """Return the format that the name of the output says; dir where it says nothing."""
    return _BY_SUFFIX.get(output.suffix, "dir")


def plan(app: App, snapshot: Snapshot, form: str, choice: Choice, name: str) -> list[Part]:
    """Return the files that a format makes of a snapshot.

    Args:
        form: one of FORMATS.  name: of the output.

    Raises:
        PathNotFound: nothing is selected.
        InvalidInput: an array has no place in this format.
    """
    return list(_PLANS[form](app, _Selected(app, snapshot, choice), name))


class _Selected:
    """The part of a snapshot that some globs select; read once, when it is needed."""

    def __init__(self, app: App, snapshot: Snapshot, choice: Choice) -> None:
        self.snapshot, self.choice = snapshot, choice
        self.say = cache(app.out.say)  # once, though what is there is compared before it is written
        globs = [compile_glob(glob) for glob in choice.select]
        unwanted = [compile_glob(glob) for glob in choice.exclude]

        def wanted(path: Keys) -> bool:
            chosen = not globs or any(match(path) for match in globs)
            return chosen and not any(match(path) for match in unwanted)

        self._wanted: Callable[[Keys], bool] = wanted
        texts = snapshot.keys()
        self.paths = [text for text in texts if self._wanted(parse_path(text)) and (text or self.nbytes(text))]
        self.files = [name for name in snapshot.files if self._wanted(tuple(name.split("/")))]
        if (globs or unwanted) and not self.paths and not self.files:
            raise PathNotFound(" ".join(choice.select) or "what --exclude leaves", snapshot.commit.short)
        self.state = cache(self._load)

    def nbytes(self, text: str) -> int:
        return self.snapshot.manifest[parse_path(text)].nbytes

    def values(self) -> Iterator[tuple[str, Any]]:
        """Yield path and value of every array and plain value."""
        for text in self.paths:
            value: Any = self.state()
            for key in parse_path(text):
                value = value[key]
            yield text, value

    def _load(self) -> object:
        if not self.paths:
            return {}
        return self.snapshot.load(list(self.choice.select) or None, list(self.choice.exclude) or None)


def _plan_torch(app: App, chosen: _Selected, name: str) -> Iterator[Part]:
    if chosen.files:
        chosen.say(f"{count(len(chosen.files), 'committed file')} left out; --format dir writes files")

    def write(stream: IO[bytes]) -> None:
        app.door("files").write_torch(chosen.state(), stream)

    yield Part((name,), sum(map(chosen.nbytes, chosen.paths)), write)


class _Forward:
    """A stream that is only written forward, so that equal arrays make equal bytes wherever they go."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.write, self.flush = stream.write, stream.flush


def _plan_npz(app: App, chosen: _Selected, name: str) -> Iterator[Part]:
    def write(stream: IO[bytes]) -> None:
        arrays, others = {}, len(chosen.files)
        for text, value in chosen.values():
            if app.door("arrays").is_array(value):
                arrays[text] = _numpy(app, chosen, value, text)
            else:
                others += 1
        if others:
            chosen.say(f"{count(others, 'value')} (files included) left out, being no arrays; --format dir writes all")
        app.door("arrays").write_npz(arrays, _Forward(stream))

    yield Part((name,), sum(map(chosen.nbytes, chosen.paths)), write)


def _plan_safetensors(app: App, chosen: _Selected, name: str) -> Iterator[Part]:
    select = chosen.choice.select or [f"{role}/**" for role in _roles(chosen.snapshot)[:1]] or ["**"]
    if chosen.files:
        chosen.say(f"{count(len(chosen.files), 'committed file')} left out; --format hf or dir writes files")
    yield from _shards(chosen, select, None, name.removesuffix(".safetensors"), (name,))
    _say_rest(chosen, select)


def _plan_hf(app: App, chosen: _Selected, _: str) -> Iterator[Part]:
    for name in _wanted_files(chosen):
        yield _file_part(chosen.snapshot, name)
    if chosen.choice.select:
        yield from _shards(chosen, chosen.choice.select, chosen.choice.shard_size, "model")
        return
    stems = {f"{role}/**": _ROLES[role] for role in _roles(chosen.snapshot)} or {"**": "model"}
    for select, stem in stems.items():
        yield from _shards(chosen, [select], chosen.choice.shard_size, stem)
    _say_rest(chosen, list(stems))


def _wanted_files(chosen: _Selected) -> list[str]:
    """Return the committed files: with --select for tensors they come along, with --exclude they can be left out.

    Such folders are made to be published, and what was not even committed is not meant for that.
    """
    unwanted = [compile_glob(glob) for glob in chosen.choice.exclude]
    files = [name for name in chosen.snapshot.files if not any(match(tuple(name.split("/"))) for match in unwanted)]
    if GIT_DIFF in files:
        files.remove(GIT_DIFF)
        chosen.say(f"{GIT_DIFF} left out; `chain cat` prints it, and --format dir writes it")
    return files


def _roles(snapshot: Snapshot) -> list[str]:
    return [role for role in _ROLES if role in snapshot]


def _shards(
    chosen: _Selected, select: Sequence[str], shard_size: str | None, stem: str, single: tuple[str, ...] | None = None
) -> Iterator[Part]:
    choice = chosen.choice
    made = chosen.snapshot.plan_safetensors(
        select,
        choice.exclude,
        dtype=choice.dtype,
        shard_size=shard_size,
        stem=stem,
    )
    for text in made.notices():
        chosen.say(text)
    for file in made.files:
        yield Part(single or (file.name,), file.nbytes, file.write)


def _say_rest(chosen: _Selected, select: Sequence[str]) -> None:
    """Say what else the snapshot holds, since nobody named what is to be written."""
    globs = [compile_glob(glob) for glob in select]
    tops = dict.fromkeys(
        format_path(path[:1])
        for path in map(parse_path, chosen.paths)
        if path and not any(match(path) for match in globs)
    )
    if tops and not chosen.choice.select:
        names = ", ".join(list(tops)[:5]) + (", ..." if len(tops) > 5 else "")
        chosen.say(f"left out: {names}; --select '**' takes every tensor")


def _plan_dir(app: App, chosen: _Selected, _: str) -> Iterator[Part]:
    for name in chosen.files:
        yield _file_part(chosen.snapshot, name)
    arrays = [text for text in chosen.paths if _is_array(chosen.snapshot, text)]
    values = cache(lambda: dict(chosen.values()))
    for text in arrays:
        yield _array_part(app, chosen, values, text)
    if chosen.paths:
        yield Part(("values.json",), 0, _values_writer(app, chosen, values, frozenset(arrays)))


def _file_part(snapshot: Snapshot, name: str) -> Part:
    nbytes, executable = snapshot.file_info(name)
    return Part(tuple(name.split("/")), nbytes, lambda stream: _write(stream, snapshot.read_file(name)), executable)


def _array_part(app: App, chosen: _Selected, values: Callable[[], dict[str, Any]], text: str) -> Part:
    def write(stream: IO[bytes]) -> None:
        app.door("arrays").write_npy(_numpy(app, chosen, values()[text], text), stream)

    return Part(array_name(text), chosen.nbytes(text), write)


def _values_writer(
    app: App, chosen: _Selected, values: Callable[[], dict[str, Any]], arrays: frozenset[str]
) -> Callable[[IO[bytes]], None]:
    def write(stream: IO[bytes]) -> None:
        plain = {text: plain_json(value) for text, value in values().items() if text not in arrays}
        listed = {text: _description(chosen.snapshot, text) for text in sorted(arrays)}
        told: Mapping[str, object] = {
            "schema": "chain.values/1",
            "commit": str(chosen.snapshot.commit.id),
            "values": plain,
            "arrays": listed,
        }
        _write(stream, json.dumps(told, indent=1, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")

    return write


def _description(snapshot: Snapshot, text: str) -> dict[str, object]:
    info = snapshot.info(text)
    return {"file": "/".join(array_name(text)), "dtype": info.dtype, "shape": info.shape}


def array_name(text: str) -> tuple[str, ...]:
    """Return the file of an array: one folder a key, escaped as in URLs, so that no key can leave its folder.

    >>> array_name("model/layer.0.weight"), array_name("..")
    (('state', 'model', 'layer.0.weight.npy'), ('state', '%2E..npy'))
    """
    words = ["%2E" + word[1:] if word.startswith(".") else word for word in _quoted(text)]
    return ("state", *words[:-1], (words[-1] if words else "state") + ".npy")


def _quoted(text: str) -> Iterator[str]:
    return (quote(format_path((key,)), safe="", errors="surrogatepass") for key in parse_path(text))


def _is_array(snapshot: Snapshot, text: str) -> bool:
    try:
        snapshot.info(text)
    except PathNotFound:
        return False
    return True


def _numpy(app: App, chosen: _Selected, value: object, text: str) -> object:
    shown = app.door("arrays").shown(value, text)
    if shown.bits:
        chosen.say(f"{text} is {shown.dtype}, which NumPy lacks; its bits are written as {shown.array.dtype}")
    return shown.array


def _write(stream: IO[bytes], data: bytes) -> None:
    stream.write(data)


_PLANS: dict[str, Callable[[App, _Selected, str], Iterator[Part]]] = {
    "torch": _plan_torch,
    "npz": _plan_npz,
    "dir": _plan_dir,
    "safetensors": _plan_safetensors,
    "hf": _plan_hf,
}
FORMATS = tuple(_PLANS)
