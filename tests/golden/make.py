"""Make the golden repositories of the format that this version writes: `python -m tests.golden.make`.

    format-1/plain.tar.xz        not encrypted: every kind of entry, of ref, of line of the log
    format-1/sealed.tar.xz       the same, encrypted; opens with format-1/key and with the passphrase "golden"
    format-1/collected.tar.xz    sealed, after forget and gc: final marks, dead ranges, a retired pack
    format-1/expected.json       what is in them
    format-1/SHA256SUMS          of all of these

Run once for each format, when it is released.  What is there is never made again: it is what users have.
"""

import hashlib
import json
import lzma
import os
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chainstore.crypto.keys import Argon2Cost, KeyFile, Passphrase
from chainstore.odb.layout import VERSION
from chainstore.repository import Repository, init
from chainstore.repository import open as open_repository
from chainstore.storage import log, pack
from tests.golden.describe import Described, described, surroundings
from tests.golden.states import numbers, readable_state, training_state

FOLDER = Path(__file__).parent
KEY = bytes.fromhex("c4" * 31 + "fe")
PASSPHRASE = Passphrase("golden", Argon2Cost(memory_kib=8, passes=1, lanes=1))

States = dict[str, dict[str, str]]


@contextmanager
def small_files() -> Iterator[None]:
    """Let packs and segments of the log be full soon, so that there are several of each."""
    before = pack.PACK_BYTES, pack.CROWDED_BYTES, log.SEGMENT_BYTES
    pack.PACK_BYTES, pack.CROWDED_BYTES, log.SEGMENT_BYTES = 60_000, 4_000, 1_500
    try:
        yield
    finally:
        pack.PACK_BYTES, pack.CROWDED_BYTES, log.SEGMENT_BYTES = before


def fill(repo: Repository, folder: Path) -> States:
    """Do everything once that leaves something behind; return what each commit holds."""
    states: States = {}

    def commit(state: dict[Any, Any], message: str, **options: Any) -> None:
        told = described(state)
        states[str(repo.commit(state, message, **options).id)] = told

    (folder / "tokenizer.json").write_text('{"tokens": ["a", "b"]}')
    for number in range(6):
        metrics = {"loss": 1 / (1 + number), "not a number": float("nan")}
        commit(training_state(number), f"step {number}", step=number, epoch=number // 3, metrics=metrics)
    repo.set_setting("codec", "small")
    repo.set_setting("threads", 1)
    repo.set_setting("threads", None)
    meta = {"run": {"name": "größe", "tags": ["a", 1, None, True, 0.5]}}
    files = {"tokenizer.json": folder / "tokenizer.json"}
    commit(training_state(6), "with a file and meta", meta=meta, files=files, tags=["with-file"])
    repo.tag("v1", "main~5")
    repo.branch("side", "main~2")
    commit(training_state(20), "beside", branch="side", codec="fast")
    commit(training_state(21), "both", parents=["main", "side"], codec="none")
    with repo.writer("pieces", "in pieces", step=3) as writer:
        state = readable_state(1)
        for key, value in state.items():
            writer[key] = value
    states[str(repo.resolve("pieces"))] = described(state)
    repo.branch("deleted", "side")
    repo.delete_ref("deleted")
    commit(training_state(22), "astray")
    repo.rollback("main", to="main~1", reason="astray")
    repo.detach("v1")
    repo.switch("main")
    commit(readable_state(2), "for simple readers", branch="simple", step=2)
    forgotten = [each for each in repo.log("main") if each.message in ("step 3", "step 4")]
    repo.forget(commits=[each.id for each in forgotten])
    for each in forgotten:
        del states[str(each.id)]
    return states


def fill_sealed(repo: Repository, folder: Path) -> States:
    spare = folder / "spare-key"
    spare.write_text("5a" * 32)
    slot = repo.add_key(KeyFile(spare), label="spare")
    repo.add_key(PASSPHRASE, label="golden passphrase")
    repo.remove_key(slot)
    return fill(repo, folder)


def fill_and_forget(repo: Repository, folder: Path) -> States:
    with small_files():
        states = fill_sealed(repo, folder)
    first, second = (repo.commit({"bulk": numbers(n, 12_000)}, f"bulk {n}", branch="bulky").id for n in range(2))
    tip = repo.commit({"bulk": numbers(2, 10)}, "bulk 2", branch="bulky").id
    repo.forget(commits=[first])
    repo.unforget([first])
    repo.forget(commits=[first, second])
    return {**states, str(tip): described({"bulk": numbers(2, 10)})}


def collect(repo: Repository, folder: Path) -> States:
    repo.gc()
    told = described(state := readable_state(3))
    return {str(repo.commit(state, "after gc", branch="simple", step=3).id): told}


Filler = Callable[[Repository, Path], States]
KINDS: dict[str, tuple[Filler, ...]] = {  # what is done, each with a handle of its own
    "plain": (fill,),
    "sealed": (fill_sealed,),
    "collected": (fill_and_forget, collect),
}


def make(target: Path) -> None:
    """Make all golden repositories in a directory that is not there yet.

    Raises:
        FileExistsError: it is.
    """
    target.mkdir(parents=True)
    (target / "key").write_text(KEY.hex() + "\n")
    expected: dict[str, Described] = {}
    for kind, fillers in KINDS.items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            key = KeyFile(target / "key") if kind != "plain" else None
            init(folder / kind, key=key, encrypt=key is not None).close()
            states: States = {}
            for filler in fillers:
                with open_repository(folder / kind, key=key, threads=1) as repo:
                    states |= filler(repo, folder)
            with open_repository(folder / kind, key=key, readonly=True) as repo:
                expected[kind] = {**surroundings(repo), "states": states}
            _store(folder / kind, target / f"{kind}.tar.xz")
    (target / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")
    sums = [f"{hash_of(file)}  {file.name}\n" for file in sorted(target.iterdir())]
    (target / "SHA256SUMS").write_text("".join(sums))


def hash_of(file: Path) -> str:
    """Return the SHA-256 of a file in hex digits."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _store(folder: Path, archive: Path) -> None:
    """Keep a directory with its empty folders, which git would not."""
    with lzma.open(archive, "wb", preset=9) as compressed, tarfile.open(fileobj=compressed, mode="w") as tar:
        tar.add(folder, folder.name, filter=lambda member: None if member.name.endswith("/reserve") else member)


def main() -> int:
    target = FOLDER / f"format-{VERSION}"
    if target.exists():
        print(f"{target} is there: golden repositories are never made again", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as settings:
        os.environ["CHAIN_CONFIG_DIR"] = settings
        make(target)
    for file in sorted(target.iterdir()):
        print(f"{file.stat().st_size:>8} {file.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
