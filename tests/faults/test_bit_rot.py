"""Rot: whatever is damaged, wrong bytes are never handed out and an old state is never shown as the newest.

Whatever can be read still is, and what is stored twice (log and index, small files and their backups) is healed.
"""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from chainstore.errors import Damaged
from chainstore.ids import Kind
from chainstore.ops.verify import VerifyReport
from chainstore.repository import rebuild
from tests.faults.children import Ending, succeed
from tests.faults.rot import (
    STILL_THERE,
    TOLD,
    Note,
    flip,
    flipped,
    go_on,
    heal,
    heal_all,
    in_child,
    look,
    named,
    trials,
)
from tests.faults.seeds import base_seed, replayable
from tests.faults.specimen import Hit, Specimen, can_read

PACK_TRIALS, INDEX_TRIALS = 1500, 150
LONG_PACK_TRIALS, LONG_TRIALS = 20_000, 3_000


@pytest.fixture(scope="module")
def specimen(shared_ground: Path) -> Specimen:
    return Specimen(shared_ground)


@pytest.fixture(scope="module")
def small_specimen(shared_ground: Path) -> Specimen:
    """One whose log is short enough to try every byte of it."""
    folder = shared_ground / "small"
    folder.mkdir()
    return Specimen(folder, 2)


def check_report(report: VerifyReport, hit: Hit) -> None:
    """Check that a verification names what is hit, and nothing else."""
    if not hit.indexed and not hit.matters:
        assert report.ok, report.damaged
        return
    (damage,) = report.damaged
    assert damage.id == str(hit.header.id)
    assert (STILL_THERE in damage.what) == hit.indexed
    if hit.header.kind == Kind.CHUNK:
        assert named(report) == hit.users


def rot_packs(specimen: Specimen, ground: Path, count: int) -> None:
    standing = specimen.copy(ground / "standing")

    def trial(number: int, source: random.Random, note: Note) -> bool:
        pack, offset = specimen.place(source)
        hit = specimen.hit(pack, offset)
        note(f"byte {offset} of {pack}, {hit}")
        with flipped(standing / pack, source, offset), specimen.open(standing, readonly=True) as repo:
            check_report(repo.verify("data"), hit)
            if source.random() < 0.1:
                assert specimen.look(repo) == hit.lost
            id = source.choice(list(specimen.states))
            name = source.choice(list(specimen.states[id]))
            assert can_read(repo, (id, name), specimen.states[id][name]) == ((id, name) not in hit.lost)
        if source.random() < 0.04:
            path = specimen.copy(ground / "trial")
            flip(path / pack, source, offset)
            assert look(specimen, path, readonly=False) == hit.lost
            assert heal(specimen, path) == hit.lost
            go_on(specimen, path)
        return bool(hit.lost)

    assert sum(trials(ground, count, trial)) > count // 3


def test_a_flipped_bit_in_a_pack_is_found_and_hits_only_what_lies_there(specimen: Specimen, ground: Path) -> None:
    rot_packs(specimen, ground, PACK_TRIALS)


def rot_log_byte(specimen: Specimen, standing: Path, offset: int, source: random.Random, *, readonly: bool) -> str:
    """Flip a bit of a byte of the log, open, and return how that is told."""
    log = specimen.files("log/*")[0]
    with flipped(standing / log, source, offset):
        before = (standing / log).read_bytes()
        try:
            with specimen.open(standing, readonly=readonly) as repo:
                assert {**repo.branches(), **repo.tags()}.keys() == specimen.refs.keys()
                return "nothing" if repo.verify("quick").ok else "verify"
        except TOLD as error:
            return type(error).__name__
        finally:
            assert (standing / log).read_bytes() == before, "a damaged log was changed by an open"


def test_a_flipped_bit_in_any_byte_of_the_log_is_told_and_healed_from_the_index(
    small_specimen: Specimen, ground: Path
) -> None:
    log = small_specimen.files("log/*")[0]
    standing = small_specimen.copy(ground / "standing")

    def trial(offset: int, source: random.Random, note: Note) -> list[str]:
        note(f"byte {offset} of the log")
        ways = (True, False) if offset % 5 == 0 else (True,)
        told = [rot_log_byte(small_specimen, standing, offset, source, readonly=readonly) for readonly in ways]
        if offset % 20 == 0:
            path = small_specimen.copy(ground / "trial")
            flip(path / log, source, offset)
            heal_all(small_specimen, path, arrays=False)
        return told

    whole = (small_specimen.path / log).stat().st_size
    told = Counter(one for some in trials(ground, whole, trial) for one in some)
    assert "nothing" not in told, told


def rot_log(specimen: Specimen, ground: Path, count: int) -> None:
    log = specimen.files("log/*")[0]

    def trial(number: int, source: random.Random, note: Note) -> None:
        path = specimen.copy(ground / "trial")
        note(f"byte {flip(path / log, source)} of {log}")
        for readonly in (True, False):
            answer = look(specimen, path, readonly=readonly, arrays=False)
            assert isinstance(answer, str) or not answer
        heal_all(specimen, path, arrays=source.random() < 0.2)

    trials(ground, count, trial)


def rot_index(specimen: Specimen, ground: Path, count: int) -> Counter[str]:
    seed = base_seed()
    told: Counter[str] = Counter()
    for number in range(count):
        source = random.Random(f"{seed} {number}")
        path = specimen.copy(ground / "trial")
        offset = flip(path / specimen.index, source)
        with replayable(seed, f"trial {number}: byte {offset} of the index"):
            ending = in_child(lambda: look(specimen, path, readonly=True, arrays=number % 3 == 0))  # noqa: B023
            told[f"reading: {_summary(ending)}"] += 1

            def write_and_heal() -> object:
                answer = look(specimen, path, readonly=False, arrays=False)  # noqa: B023
                heal_all(specimen, path)  # noqa: B023
                if number % 3 == 0:  # noqa: B023
                    go_on(specimen, path)  # noqa: B023
                return answer

            told[f"writing: {_summary(Ending(answer=succeed(write_and_heal)))}"] += 1
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
    told = rot_index(specimen, ground, INDEX_TRIALS)
    print(dict(told))  # LMDB may be killed by what it reads; how often is worth knowing
    assert sum(count for what, count in told.items() if what.startswith("reading: killed")) < INDEX_TRIALS // 15


@pytest.mark.long
@pytest.mark.parametrize(
    ("rot", "count"), [(rot_packs, LONG_PACK_TRIALS), (rot_log, LONG_TRIALS), (rot_index, LONG_TRIALS)]
)
def test_many_flipped_bits_do_no_more_harm(
    rot: Callable[[Specimen, Path, int], object], count: int, specimen: Specimen, ground: Path
) -> None:
    rot(specimen, ground, count)


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
