"""`chain doctor`"""

import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Literal

import click

from chainstore import __version__, config
from chainstore.cli import app as cli
from chainstore.cli import exits
from chainstore.cli.app import App
from chainstore.cli.output import Output
from chainstore.cli.wording import duration, size, table
from chainstore.errors import ChainError, RepositoryNotFound
from chainstore.repository import init as make_repository
from chainstore.repository import survey

State = Literal["ok", "warn", "fail"]
LIBRARIES = ("lmdb", "blake3", "cryptography", "zstandard", "cbor2", "numpy", "click")
_LITTLE_BYTES = 2 << 30
_SLOW_SECONDS = 0.2  # a commit of nothing that takes longer waits for the disk more than training would like
_TRIALS = 5
_COLORS = {"ok": "green", "warn": "yellow", "fail": "red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: how it is, what was seen, and what would help."""

    what: str
    state: State
    seen: str
    hint: str = ""


@cli.command("doctor", examples=["chain doctor", "chain -C runs/gpt doctor --json"])
@click.pass_obj
def command(app: App) -> None:
    """Look whether this machine, this place and your key suit chainstore.

    Makes a small repository beside yours for a moment, and commits to it, to see that the disk and LMDB do as they
    should. Warnings do not change the exit code.
    """
    findings: list[Finding] = []
    for check in (_software, _torch, _repository, _place, _trial, _key):
        findings += check(app)
    failed = [finding for finding in findings if finding.state == "fail"]
    app.exit_code = app.exit_code or (exits.ERROR if failed else exits.OK)
    fields = [{"what": f.what, "state": f.state, "seen": f.seen, "hint": f.hint} for f in findings]
    app.out.result("chain.doctor/1", {"ok": not failed, "findings": fields}, _lines(app.out, findings))


def _lines(out: Output, findings: list[Finding]) -> Iterator[str]:
    rows = [(out.style(f.state, _COLORS[f.state]), f.what, f.seen) for f in findings]
    for line, finding in zip(table(rows), findings, strict=True):
        yield line
        if finding.hint and finding.state != "ok":
            yield f"      {finding.hint}"


def _software(app: App) -> Iterator[Finding]:
    system = f"Python {platform.python_version()} on {platform.system()} {platform.release()} {platform.machine()}"
    yield Finding("system", "ok", f"chainstore {__version__}, {system}")
    if platform.system() != "Linux":
        yield Finding("system", "warn", f"{platform.system()} is not tested", "use Linux for what matters")
    yield Finding("libraries", "ok", ", ".join(f"{name} {_version(name)}" for name in LIBRARIES))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def _torch(app: App) -> Iterator[Finding]:
    if find_spec("torch") is None:
        yield Finding("torch", "warn", "not installed", "snapshots that hold tensors cannot be loaded without it")
    else:
        yield Finding("torch", "ok", _version("torch"))


def _repository(app: App) -> Iterator[Finding]:
    try:
        with app.open(readonly=True) as repo:
            how = f"opens with {repo.key_origin}" if repo.encrypted else "not encrypted"
            yield Finding("repository", "ok" if repo.encrypted else "warn", f"{repo.path}, {how}")
    except RepositoryNotFound:
        yield Finding("repository", "ok", "none here yet: `chain init` makes one")
    except ChainError as error:
        app.exit_code = error.exit_code
        yield Finding("repository", "fail", str(error), error.hint)


def _where(app: App) -> Path:
    try:
        return app.place().parent
    except RepositoryNotFound:
        return Path.cwd()


def _place(app: App) -> Iterator[Finding]:
    place = _where(app)
    ground = survey(place)
    kind = ground.file_system or "a file system of unknown type"
    if ground.network:
        yield Finding("disk", "ok", f"{place} lies on {kind}, a network disk")
        yield _index_place(app, place)
    else:
        yield Finding("disk", "ok", f"{place} lies on {kind}")
    little = ground.free_bytes < _LITTLE_BYTES
    yield Finding("space", "warn" if little else "ok", f"{size(ground.free_bytes)} free", "a full disk ends commits")


def _index_place(app: App, place: Path) -> Finding:
    """Say where the index goes that cannot lie on a network disk."""
    dirs = [Path(app.index_dir)] if app.index_dir else list(config.index_dirs())
    local = next((each for each in dirs if not survey(each).network), None)
    if local is None:
        hint = "name a local directory: --index-dir, index_dir=, or CHAIN_INDEX_DIR"
        return Finding("index", "fail", f"no local disk for it: {', '.join(map(str, dirs))}", hint)
    if survey(place).shares_locks:
        return Finding("index", "ok", f"kept in {local}; whichever machine writes takes over by itself")
    hint = "after a change of machines: `chain rebuild-index --take-over`, or cs.open(PATH, take_over=True)"
    return Finding("index", "warn", f"kept in {local}; whether locks reach other machines is not known here", hint)


def _trial(app: App) -> Iterator[Finding]:
    place = _where(app)
    try:
        with TemporaryDirectory(prefix=".chain-doctor-", dir=place) as folder, TemporaryDirectory() as local:
            index_dir = Path(local) if survey(place).network else None
            seconds, damaged = _commit_for_a_while(Path(folder), index_dir)
    except (OSError, ChainError) as error:
        hint = getattr(error, "hint", "") or "make the folder writable, or choose another with -C"
        yield Finding("commits", "fail", f"a commit in {place} failed: {error}", hint)
        return
    if damaged:
        hint = "this disk does not give back what was written: do not use it"
        yield Finding("commits", "fail", f"{damaged} things were damaged right after they were written", hint)
    slow = seconds > _SLOW_SECONDS
    hint = "each commit waits for the disk to be sure; a local SSD takes a few ms"
    yield Finding("commits", "warn" if slow else "ok", f"LMDB works; a small commit takes {duration(seconds)}", hint)


def _commit_for_a_while(folder: Path, index_dir: Path | None) -> tuple[float, int]:
    """Make a repository, commit to it, and return the median seconds of a commit and how much was damaged after it."""

    def timed(work: Callable[[], object]) -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    with make_repository(folder / "trial", encrypt=False, index_dir=index_dir) as repo:
        seconds = [timed(lambda n=n: repo.commit({"step": n})) for n in range(_TRIALS)]  # type: ignore[misc]
        return median(seconds), len(repo.verify("data").damaged)


def _key(app: App) -> Iterator[Finding]:
    source = config.key_from_environment()
    if source is not None:
        yield Finding("key", "ok", f"taken from {source.origin}")
        return
    path = config.user_key_path()
    if path.exists():
        yield Finding("key", "ok", f"{path}; keep a copy elsewhere, without it nothing can be read")
    else:
        yield Finding("key", "ok", f"none yet; the first `chain init` makes {path}")
    problem = config.home_problem()
    if problem is not None:
        hint = "set CHAIN_KEY_FILE to a file that lasts; else the key is kept inside each repository"
        yield Finding("key", "warn", f"{problem}: a key made there may be gone tomorrow", hint)
