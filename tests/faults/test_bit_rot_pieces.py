"""Rot of whole pieces: what is cut off, zeroed, exchanged or older is found like a flipped bit, and hits no more."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from chainstore.errors import ChainError, Damaged
from chainstore.repository import rebuild
from tests.faults.children import succeed
from tests.faults.rot import Note, go_on, heal, heal_all, look, named, trials
from tests.faults.seeds import base_seed, replayable
from tests.faults.specimen import Specimen


@pytest.fixture(scope="module")
def specimen(shared_ground: Path) -> Specimen:
    return Specimen(shared_ground)


def test_a_log_cut_short_anywhere_is_told_and_healed_from_the_index(specimen: Specimen, ground: Path) -> None:
    seed = base_seed()
    source = random.Random(seed)
    log = specimen.files("log/*")[0]
    whole = (specimen.path / log).stat().st_size
    for length in [0, 1, whole - 1, *(source.randrange(whole) for _ in range(30))]:
        path = specimen.copy(ground / "trial")
        with open(path / log, "r+b") as file:
            file.truncate(length)
        with replayable(seed, f"{length} of {whole} bytes of the log are left"):
            for readonly in (True, False):
                assert look(specimen, path, readonly=readonly) in ("Damaged", "Malformed")
            heal_all(specimen, path)
            go_on(specimen, path)


def test_a_log_that_lost_its_last_line_is_told_and_healed_from_the_index(specimen: Specimen, ground: Path) -> None:
    path = specimen.copy(ground / "trial")
    log = path / specimen.files("log/*")[0]
    with specimen.open(path) as repo, repo._db.view() as view:
        start = view.position().start
    with open(log, "r+b") as file:
        file.truncate(start)
    for readonly in (True, False):
        assert look(specimen, path, readonly=readonly) == "Damaged"
    heal_all(specimen, path)


Spoil = Callable[[Specimen, bytes, Path, random.Random], bytes]


def zero(specimen: Specimen, data: bytes, pack: Path, source: random.Random) -> bytes:
    """Zero a sector or a page."""
    length = source.choice((512, 4096))
    start = source.randrange(len(data)) // length * length
    stop = min(start + length, len(data))
    return data[:start] + bytes(stop - start) + data[stop:]


def exchange(specimen: Specimen, data: bytes, pack: Path, source: random.Random) -> bytes:
    """Exchange two records; what lies between moves where they differ in length."""
    (a, some), (b, others) = sorted(source.sample(specimen.records(pack), 2))
    swapped = data[b : b + others] + data[a + some : b] + data[a : a + some]
    return data[:a] + swapped + data[b + others :]


def cut(specimen: Specimen, data: bytes, pack: Path, source: random.Random) -> bytes:
    """Cut the end off, in some cases all of it or a single byte."""
    length = source.choice((0, len(data) - 1, *(source.randrange(len(data)) for _ in range(6))))
    return data[:length]


def put_back(specimen: Specimen, data: bytes, pack: Path, source: random.Random) -> bytes:
    """Put back the pack as it was three commits before the end."""
    old = (specimen.yesterday / pack).read_bytes()
    assert data.startswith(old) and len(old) < len(data)
    return old


def rot_pieces(specimen: Specimen, ground: Path, spoil: Spoil, count: int) -> None:
    (pack,) = specimen.files("packs/*/*")
    data = (specimen.path / pack).read_bytes()

    def trial(number: int, source: random.Random, note: Note) -> int:
        spoiled = spoil(specimen, data, pack, source)
        note(f"{spoil.__name__}, {len(spoiled)} of {len(data)} bytes")
        path = specimen.copy(ground / "trial")
        (path / pack).write_bytes(spoiled)
        spoilt = specimen.spoiled_by(pack, spoiled)
        with specimen.open(path, readonly=True) as repo:
            assert named(repo.verify("data")) == spoilt.named
        assert look(specimen, path, readonly=bool(number % 2)) == spoilt.lost
        assert heal(specimen, path) == spoilt.gone
        go_on(specimen, path)
        return len(spoilt.lost)

    assert sum(trials(ground, count, trial)) > 0


@pytest.mark.parametrize(("spoil", "count"), [(zero, 40), (exchange, 30), (cut, 28), (put_back, 2)])
def test_a_pack_that_is_spoiled_loses_only_what_lay_there(
    specimen: Specimen, ground: Path, spoil: Spoil, count: int
) -> None:
    rot_pieces(specimen, ground, spoil, count)


@pytest.mark.long
@pytest.mark.parametrize(("spoil", "count"), [(zero, 2000), (exchange, 2000), (cut, 1000)])
def test_a_pack_that_is_often_spoiled_loses_only_what_lay_there(
    specimen: Specimen, ground: Path, spoil: Spoil, count: int
) -> None:
    rot_pieces(specimen, ground, spoil, count)


@pytest.mark.parametrize("name", ["log", "keyring", "format", "index.owner"])
def test_an_older_file_put_back_is_told_or_changes_nothing(specimen: Specimen, ground: Path, name: str) -> None:
    """Of these only the log had changed since; with an older one nothing is taken for the newest."""
    path = specimen.copy(ground / "trial")
    file = specimen.files("log/*")[0] if name == "log" else Path(name)
    shutil.copy(specimen.yesterday / file, path / file)
    for readonly in (True, False):
        assert look(specimen, path, readonly=readonly) == ("Damaged" if name == "log" else set())
    heal_all(specimen, path)


def damage_index(path: Path, specimen: Specimen, how: str) -> None:
    index = path / specimen.index
    match how:
        case "zeroed":
            index.write_bytes(bytes(index.stat().st_size))
        case "zeroed from the middle on":
            data = index.read_bytes()
            index.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
        case "empty":
            index.write_bytes(b"")
        case "cut":
            index.write_bytes(index.read_bytes()[: index.stat().st_size // 2])
        case "without its data":
            index.unlink()
        case "gone":
            shutil.rmtree(path / "index")
        case "without owner":
            (path / "index.owner").unlink()
        case "yesterday's":
            shutil.copy(specimen.yesterday / specimen.index, index)
        case "another file of yesterday's":
            index.unlink()
            shutil.copy(specimen.yesterday / specimen.index, index)


@pytest.mark.parametrize(
    "how",
    [
        *("zeroed", "zeroed from the middle on", "empty", "cut", "without its data", "gone", "without owner"),
        *("yesterday's", "another file of yesterday's"),
    ],
)
def test_an_index_that_is_lost_is_told_or_made_good_and_healed_by_a_rebuild(
    specimen: Specimen, ground: Path, how: str
) -> None:
    for readonly in (True, False):
        path = specimen.copy(ground / "trial")
        damage_index(path, specimen, how)
        answer = succeed(lambda: look(specimen, path, readonly=readonly))  # noqa: B023
        assert answer == (set() if "yesterday" in how else "Damaged")
    succeed(lambda: heal_all(specimen, path))
    succeed(lambda: go_on(specimen, path))


def test_log_and_index_both_lost_is_said_and_nothing_is_changed(specimen: Specimen, ground: Path) -> None:
    path = specimen.copy(ground / "trial")
    shutil.rmtree(path / "index")
    (path / specimen.files("log/*")[0]).write_bytes(b"")
    with pytest.raises(Damaged):
        rebuild(path, key=specimen.key)
    with pytest.raises(ChainError):
        specimen.open(path)
    for pack in specimen.files("packs/*/*"):
        assert (path / pack).read_bytes() == (specimen.path / pack).read_bytes()
