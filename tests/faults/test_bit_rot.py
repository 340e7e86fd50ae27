"""Rot: whatever is damaged, wrong bytes are never handed out and an old state is never shown as the newest.

Whatever can be read still is, and what is stored twice (log and index, small files and their backups) is healed.
"""

import random
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from chainstore.errors import ChainError, Damaged, Denied, Unsupported
from chainstore.ids import ObjectId
from chainstore.refs import short_name
from chainstore.repository import rebuild
from tests.faults.children import Ending, run, succeed
from tests.faults.chronicle import same
from tests.faults.seeds import base_seed, replayable
from tests.faults.specimen import Part, Specimen

TRIALS = 300
TOLD = (Damaged, Denied, Unsupported)  # what may be said of a damaged file


@pytest.fixture(scope="module")
def specimen(shared_ground: Path) -> Specimen:
    return Specimen(shared_ground)


def flip(file: Path, source: random.Random, offset: int | None = None) -> int:
    """Flip one bit and return where."""
    data = bytearray(file.read_bytes())
    offset = source.randrange(len(data)) if offset is None else offset
    data[offset] ^= 1 << source.randrange(8)
    file.write_bytes(data)
    return offset


def look(specimen: Specimen, path: Path, *, readonly: bool, arrays: bool = True) -> str | set[Part]:
    """Open, read, and verify; return what cannot be read, or the name of the error that says why nothing can.

    Raises:
        AssertionError: something wrong was handed out.
    """
    try:
        with specimen.open(path, readonly=readonly) as repo:
            lost = specimen.look(repo, arrays=arrays)
            report = repo.verify("data" if arrays or lost else "links")
            assert not (lost and report.ok), f"verify found nothing where {lost} cannot be read"
            return lost
    except TOLD as error:
        return type(error).__name__


def heal(specimen: Specimen, path: Path, *, arrays: bool = True) -> set[Part]:
    """Rebuild the index and return what still cannot be read; a ref may only move off a commit that is not whole."""
    report = rebuild(path, key=specimen.key)
    assert not report.lost_lines
    with specimen.open(path) as repo:
        lost = specimen.look(
            repo, arrays=arrays, moved={short_name(ref): after for ref, (_, after) in report.moved.items()}
        )
    hit = {commit for commit, _ in lost}
    assert all(before in hit and after not in hit for before, after in report.moved.values()), report.moved
    return lost


def heal_all(specimen: Specimen, path: Path, *, arrays: bool = True) -> None:
    """Rebuild the index, after which nothing is damaged."""
    assert heal(specimen, path, arrays=arrays) == set()
    with specimen.open(path) as repo:
        report = repo.verify("links")
        assert report.ok, report.damaged


def go_on(specimen: Specimen, path: Path) -> None:
    """Read a state, commit it again, and find it whole: what was damaged is stored anew."""
    with specimen.open(path) as repo:
        id, state = list(specimen.states.items())[-1]
        with suppress(ChainError):
            repo.checkout(ObjectId.parse(id))
        commit = repo.commit(state, "again", branch="again")
        assert same(repo.checkout(commit), state)
        assert repo.resolve("again") == commit.id


def in_child(work: Callable[[], object]) -> Ending:
    ending = run(work)
    assert not ending.error, ending.error
    return ending


# ---- one bit


def rot_packs(specimen: Specimen, ground: Path, trials: int) -> None:
    seed = base_seed()
    source = random.Random(seed)
    harmless = 0
    packs = specimen.files("packs/*/*")
    for number in range(trials):
        pack = source.choices(packs, [(specimen.path / pack).stat().st_size for pack in packs])[0]
        path = specimen.copy(ground / "trial")
        offset = flip(path / pack, source)
        hit = specimen.hit(pack, offset)
        with replayable(seed, f"trial {number}: byte {offset} of {pack}, {hit}"):
            lost = succeed(lambda: look(specimen, path, readonly=bool(number % 2)))  # noqa: B023
            assert lost == (hit.parts if hit.matters else set())
            assert succeed(lambda: heal(specimen, path)) == lost  # noqa: B023
            if number % 3 == 0:
                succeed(lambda: go_on(specimen, path))  # noqa: B023
        harmless += not hit.matters
    assert harmless < trials // 2


def test_a_flipped_bit_in_a_pack_is_found_and_hits_only_what_lies_there(specimen: Specimen, ground: Path) -> None:
    rot_packs(specimen, ground, TRIALS)


def rot_log(specimen: Specimen, ground: Path, trials: int) -> None:
    seed = base_seed()
    source = random.Random(seed)
    told: Counter[str] = Counter()
    log = specimen.files("log/*")[0]
    for number in range(trials):
        path = specimen.copy(ground / "trial")
        offset = flip(path / log, source)
        with replayable(seed, f"trial {number}: byte {offset} of {log}"):
            for readonly in (True, False):
                answer = succeed(lambda: look(specimen, path, readonly=readonly, arrays=False))  # noqa: B023
                assert isinstance(answer, str) or not answer
                told[answer if isinstance(answer, str) else "readable"] += 1
            succeed(lambda: heal_all(specimen, path, arrays=number % 5 == 0))  # noqa: B023
    print(dict(told))


def test_a_flipped_bit_in_the_log_is_told_or_harmless_and_healed_from_the_index(
    specimen: Specimen, ground: Path
) -> None:
    rot_log(specimen, ground, TRIALS)


def rot_index(specimen: Specimen, ground: Path, trials: int) -> Counter[str]:
    seed = base_seed()
    source = random.Random(seed)
    told: Counter[str] = Counter()
    for number in range(trials):
        path = specimen.copy(ground / "trial")
        offset = flip(path / specimen.index, source)
        with replayable(seed, f"trial {number}: byte {offset} of the index"):
            ending = in_child(lambda: look(specimen, path, readonly=True, arrays=number % 3 == 0))  # noqa: B023
            told[f"reading: {_summary(ending)}"] += 1
            ending = in_child(lambda: look(specimen, path, readonly=False, arrays=False))  # noqa: B023
            told[f"writing: {_summary(ending)}"] += 1
            assert not ending.signal, f"a writing open, or verify, was killed by signal {ending.signal}"
            succeed(lambda: heal_all(specimen, path))  # noqa: B023
            if number % 3 == 0:
                succeed(lambda: go_on(specimen, path))  # noqa: B023
    return told


def _summary(ending: Ending) -> str:
    if ending.signal:
        return f"killed by {ending.signal}"
    if isinstance(ending.answer, str):
        return ending.answer
    return "some unreadable" if ending.answer else "all readable"


def test_a_flipped_bit_in_the_index_is_told_or_harmless_and_healed_by_a_rebuild(
    specimen: Specimen, ground: Path
) -> None:
    told = rot_index(specimen, ground, TRIALS)
    print(dict(told))  # LMDB may be killed by what it reads; how often is worth knowing
    assert sum(count for what, count in told.items() if what.startswith("reading: killed")) < TRIALS // 20


@pytest.mark.long
@pytest.mark.parametrize("rot", [rot_packs, rot_log, rot_index])
def test_3000_flipped_bits_do_no_more_harm(
    rot: Callable[[Specimen, Path, int], object], specimen: Specimen, ground: Path
) -> None:
    rot(specimen, ground, 10 * TRIALS)


@pytest.mark.parametrize("name", ["format", "format.bak", "keyring", "keyring.bak", "index.owner"])
def test_a_flipped_bit_in_any_byte_of_a_small_file_is_told_or_made_good(
    specimen: Specimen, ground: Path, name: str
) -> None:
    seed = base_seed()
    source = random.Random(seed)
    path = specimen.copy(ground / "trial")
    whole = (path / name).read_bytes()

    def every_byte() -> Counter[str]:
        told: Counter[str] = Counter()
        for offset in range(len(whole)):
            (path / name).write_bytes(whole)
            flip(path / name, source, offset)
            with replayable(seed, f"byte {offset} of {name}"):
                told[_open_both(specimen, path, name, whole)] += 1
        return told

    told = succeed(every_byte)
    print(name, dict(told))
    assert set(told) <= {"verify tells", "Damaged", "harmless"}
    assert told["harmless"] <= len(whole) // 5 or name == "index.owner"


def _open_both(specimen: Specimen, path: Path, name: str, whole: bytes) -> str:
    """Open for reading and for writing; return how the damage shows."""
    told = []
    for readonly in (True, False):
        try:
            with specimen.open(path, readonly=readonly) as repo:
                assert {**repo.branches(), **repo.tags()}.keys() == specimen.refs.keys()
                assert str(repo.resolve("main")) == specimen.refs["main"]
                told.append("harmless" if repo.verify("quick").ok else "verify tells")
        except Damaged as error:
            assert name == "index.owner", error
            told.append("Damaged")
            rebuild(path, key=specimen.key)
    return told[0]


def test_where_both_copies_of_the_key_slots_are_damaged_it_is_said_so(specimen: Specimen, ground: Path) -> None:
    path = specimen.copy(ground / "trial")
    for name in ("keyring", "keyring.bak"):
        flip(path / name, random.Random(1))
    for attempt in (lambda: specimen.open(path), lambda: rebuild(path, key=specimen.key)):
        with pytest.raises(Damaged, match="key slots"):
            attempt()


# ---- whole pieces


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


def test_a_pack_cut_short_anywhere_loses_only_what_was_cut_off(specimen: Specimen, ground: Path) -> None:
    seed = base_seed()
    source = random.Random(seed)
    pack = specimen.files("packs/*/*")[0]
    whole = (specimen.path / pack).stat().st_size
    for length in [0, whole - 1, *(source.randrange(whole) for _ in range(8))]:
        path = specimen.copy(ground / "trial")
        with open(path / pack, "r+b") as file:
            file.truncate(length)
        gone = {part for offset in range(length, whole, 64) for part in specimen.hit(pack, offset // 64 * 64).parts}
        with replayable(seed, f"{length} of {whole} bytes of the pack are left"):
            for readonly in (True, False):
                assert succeed(lambda: look(specimen, path, readonly=readonly)) == gone  # noqa: B023
            assert heal(specimen, path) == gone
            go_on(specimen, path)


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
            shutil.copy(specimen.yesterday / "data.mdb", index)
        case "another file of yesterday's":
            index.unlink()
            shutil.copy(specimen.yesterday / "data.mdb", index)


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
