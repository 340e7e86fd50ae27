"""Verify: prove what is stored, from a look at the log to a read of every byte.

quick    log, index and small files agree; every ref names a commit that is there
links    quick, and every reachable commit and tree page reads, every object has a record in its pack, and so
         has everything that it builds on
data     links, and every reachable chunk (or a sample of them) reads and hashes to its id

Where something is damaged, everything is asked once more before it is told: gc may have swept a snapshot or moved a
record while we looked, and what no kept commit reaches is no damage.
"""

from dataclasses import dataclass, field

from chainstore.display import some
from chainstore.errors import ChainError, Damaged, InvalidInput, StorageError
from chainstore.ids import ObjectId
from chainstore.observe import Observer
from chainstore.odb.local import LocalDatabase
from chainstore.ops.blame import EVERYTHING, Blame, Hit
from chainstore.ops.sampling import Sample
from chainstore.ops.verify_data import DataReader, still_bad
from chainstore.ops.verify_ground import check_index, check_log, check_packs, check_small_files, note
from chainstore.ops.verify_report import LEVELS, Damage, Level, VerifyReport
from chainstore.ops.verify_walk import Bad, Fetch, Reach, check_places, find_tips, walk_commits, walk_pages

__all__ = ["LEVELS", "Damage", "Examination", "Level", "VerifyReport", "examine", "verify"]

_PATHS_NAMED = 5  # in the sentence; all of them are in the damage


@dataclass(frozen=True, slots=True)
class Examination:
    """A verification with what a repair needs: the damaged objects, and what each hits."""

    report: VerifyReport
    bad: dict[ObjectId, Bad] = field(default_factory=dict)


def verify(
    db: LocalDatabase, level: Level, *, threads: int, observer: Observer, sample: Sample | None = None
) -> VerifyReport:
    """Look at everything that `level` covers; damage is collected, not raised.

    Args:
        sample: the part of the chunks to read, at level "data".

    Raises:
        InvalidInput: there is no such level, or a sample where nothing is read.
    """
    return examine(db, level, threads=threads, observer=observer, sample=sample).report


def examine(
    db: LocalDatabase,
    level: Level,
    *,
    threads: int,
    observer: Observer,
    sample: Sample | None = None,
    source: LocalDatabase | None = None,
) -> Examination:
    """Verify, and keep what a repair needs; see `verify`.

    Args:
        source: another repository; where commits and pages are damaged here, the walk goes on through its copies.
    """
    if level not in LEVELS:
        raise InvalidInput(f"no level {level!r}: choose quick, links or data")
    if sample is not None and level != "data":
        raise InvalidInput(f"a sample says what is read, but level {level!r} reads no data", hint='use level "data"')
    report = VerifyReport(level)
    if sample is not None:
        report.sample, report.seed = sample.text, sample.seed
    check_small_files(db.layout, report, encrypted=db.sealer.encrypted)
    fetch = Fetch(db, source)
    if check_index(db.index_path, db.layout, report):
        note(report, "log", lambda: _check_log(db, report))
        note(report, "packs", lambda: check_packs(db.packs, db.view, report))
        reach = _reach(fetch, report)
        if level == "quick":
            for tip in reach.tips:
                fetch.commit(tip)
        else:
            _look_at_all(fetch, reach, report, level, sample, threads, observer)
        bad = still_bad(fetch, fetch.bad, data=level == "data") if fetch.bad else set()
        fetch.bad = {id: found for id, found in fetch.bad.items() if id in bad}
        if bad:
            report.damaged += _explain(fetch, links=level != "quick")
    return Examination(report, fetch.bad)


def _check_log(db: LocalDatabase, report: VerifyReport) -> None:
    with db.view() as view:
        check_log(view, db.log, report, db.sealer.open_line)


def _reach(fetch: Fetch, report: VerifyReport) -> Reach:
    """Return what refs name; a table of refs that does not read is damage."""
    reach = Reach()
    try:
        with fetch.db.view() as view:
            report.refs, reach.tips = find_tips(view)
    except ChainError as error:
        report.damaged.append(Damage(str(error), check="refs"))
    return reach


def _look_at_all(
    fetch: Fetch,
    reach: Reach,
    report: VerifyReport,
    level: Level,
    sample: Sample | None,
    threads: int,
    observer: Observer,
) -> None:
    walk_commits(fetch, reach)
    walk_pages(fetch, reach, observer)
    check_places(fetch, reach)
    report.commits, report.chunks = len(reach.commits), len(reach.chunks)
    report.pages = len(reach.pages)
    if level == "data":
        DataReader(fetch, reach, report, observer).run(sample, threads)


def _explain(fetch: Fetch, *, links: bool) -> list[Damage]:
    """Return what is damaged and what it hits; the refs and marks of this moment decide what counts."""
    noted, reach = dict(fetch.bad), _reach(fetch, VerifyReport("quick"))
    wanted = walk_commits(fetch, reach) if links else set(reach.tips)
    hits = Blame(fetch, noted).of(reach.kept) if links else {}
    fetch.bad = {id: bad for id, bad in noted.items() if id in (wanted if bad.check == "commits" else hits)}
    return [
        _damage(id, bad, hits[id] if id in hits else _of_commit(fetch, id), reach.tips.get(id))
        for id, bad in fetch.bad.items()
    ]


def _of_commit(fetch: Fetch, id: ObjectId) -> Hit:
    """Return what a damaged commit hits: everything in it, unless the index still gives it."""
    try:
        fetch.db.read(id)
    except (Damaged, StorageError):
        return Hit((str(id),), (EVERYTHING,))
    return Hit((str(id),))


def _damage(id: ObjectId, bad: Bad, hit: Hit, name: str | None) -> Damage:
    paths = some(hit.paths, _PATHS_NAMED) if hit.paths != (EVERYTHING,) else "everything"
    if bad.check == "commits":
        what = f"{name} names a commit that is damaged" if name else f"commit {id.short} is damaged"
    elif bad.check == "pages":
        what = f"a page that lists {paths}{f' ({hit.span})' if hit.span else ''} is damaged"
    else:
        what = f"a chunk of {paths} is damaged"
    return Damage(f"{what}: {bad.why}", str(id), hit.commits, hit.paths, bad.check, bad.pack, bad.offset, bad.why)
