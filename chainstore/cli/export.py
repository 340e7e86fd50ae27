"""Export: what `checkout -o` writes, from a snapshot to files that other tools read."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from chainstore.cli.app import App
from chainstore.cli.folder import Folder, Part, check_names
from chainstore.cli.records import plain_json
from chainstore.cli.wording import count
from chainstore.errors import InvalidInput, PathNotFound
from chainstore.lazy import Snapshot
from chainstore.model.paths import Path as Keys
from chainstore.model.paths import compile_glob, format_path, parse_path

FORMATS = ("torch", "npz", "dir")
_BY_SUFFIX = {".pt": "torch", ".pth": "torch", ".bin": "torch", ".ckpt": "torch", ".npz": "npz"}


@dataclass(frozen=True, slots=True)
class Written:
    """One file: its name below the output folder, its bytes, and whether an equal one was there."""

    name: str
    nbytes: int
    unchanged: bool

    def fields(self) -> dict[str, object]:
        return {"name": self.name, "nbytes": self.nbytes, "unchanged": self.unchanged}


@dataclass(slots=True)
class Export:
    """What was written, or in a dry run would be."""

    files: list[Written] = field(default_factory=list)


def export(
    app: App, snapshot: Snapshot, output: Path, form: str | None, select: Sequence[str], *, dry_run: bool
) -> Export:
    """Write what a snapshot holds, or the selected part of it.

    Args:
        form: one of FORMATS; None goes by the suffix of `output`.

    Raises:
        PathNotFound: nothing is selected.
        InvalidInput: a name would leave the folder, or an array has no place in this format.
    """
    form = form or _BY_SUFFIX.get(output.suffix, "dir")
    single = form != "dir"
    if single and output.is_dir():
        raise InvalidInput(f"{output} is a folder", hint="name a file, or use --format dir")
    parts = list(_PLANS[form](app, _Selected(snapshot, select), output.name))
    check_names(parts)
    folder, done = Folder(output.absolute().parent if single else output), Export()
    for part in parts:
        nbytes, unchanged = (part.nbytes, False) if dry_run else folder.put(part)
        done.files.append(Written("/".join(part.name), nbytes, unchanged))
    return done


class _Selected:
    """The part of a snapshot that some globs select; read once, when it is needed."""

    def __init__(self, snapshot: Snapshot, select: Sequence[str]) -> None:
        self.snapshot = snapshot
        self._select = list(select) or None
        globs = [compile_glob(glob) for glob in select]
        self._wanted: Callable[[Keys], bool] = lambda path: not globs or any(match(path) for match in globs)
        texts = snapshot.keys()
        self.paths = [text for text in texts if self._wanted(parse_path(text)) and (text or self.nbytes(text))]
        self.files = [name for name in snapshot.files if self._wanted(tuple(name.split("/")))]
        if select and not self.paths and not self.files:
            raise PathNotFound(" ".join(select), snapshot.commit.short)
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
        return self.snapshot.load(self._select)


def _plan_torch(app: App, chosen: _Selected, name: str) -> Iterator[Part]:
    if chosen.files:
        app.out.say(f"{count(len(chosen.files), 'committed file')} left out; --format dir writes files")

    def write(stream: IO[bytes]) -> None:
        app.door("files").write_torch(chosen.state(), stream)

    yield Part((name,), sum(map(chosen.nbytes, chosen.paths)), write)


def _plan_npz(app: App, chosen: _Selected, name: str) -> Iterator[Part]:
    def write(stream: IO[bytes]) -> None:
        arrays, others = {}, len(chosen.files)
        for text, value in chosen.values():
            if app.door("arrays").is_array(value):
                arrays[text] = _numpy(app, value, text)
            else:
                others += 1
        if others:
            app.out.say(f"{count(others, 'value')} (files included) left out, being no arrays; --format dir writes all")
        app.door("arrays").write_npz(arrays, stream)

    yield Part((name,), sum(map(chosen.nbytes, chosen.paths)), write)


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
        app.door("arrays").write_npy(_numpy(app, values()[text], text), stream)

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


def _numpy(app: App, value: object, text: str) -> object:
    shown = app.door("arrays").shown(value, text)
    if shown.bits:
        app.out.say(f"{text} is {shown.dtype}, which NumPy lacks; its bits are written as {shown.array.dtype}")
    return shown.array


def _write(stream: IO[bytes], data: bytes) -> None:
    stream.write(data)


_PLANS: dict[str, Callable[[App, _Selected, str], Iterator[Part]]] = {
    "torch": _plan_torch,
    "npz": _plan_npz,
    "dir": _plan_dir,
}
