"""Proving: what is stored is verified, with a key or without, healed from a copy, and the newest good commit found."""

import os
import re
from fractions import Fraction

from chainstore.config import parse_size
from chainstore.errors import InvalidInput, RepositoryNotFound, RevisionNotFound, SnapshotNotFound
from chainstore.model.commit import Commit
from chainstore.observe import Notice, Observer, silent
from chainstore.odb.local import LocalDatabase
from chainstore.ops.latest_good import latest_good
from chainstore.ops.repair import check_source, verify_and_repair
from chainstore.ops.repair_files import heal_files
from chainstore.ops.sampling import Amount, Part, Sample, Share
from chainstore.ops.verify import verify
from chainstore.ops.verify_records import verify_records
from chainstore.ops.verify_report import Level, VerifyReport
from chainstore.refs import HEAD, branch_ref, short_name
from chainstore.repository.handles import Handle, release, share
from chainstore.repository.settings import make_settings, surroundings, where_it_is
from chainstore.repository.upkeep import rebuild_open

_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,9})?) *%")
_PART = re.compile(r"([0-9]{1,9}) */ *([0-9]{1,9})")
_SEED_BYTES = 4


def parse_sample(text: str, seed: int | None) -> Sample:
    """Return the sample that a text names: "5%", "1/7" or "10G".

    Args:
        seed: what a share or an amount is drawn by; None: by chance.

    Raises:
        InvalidInput: it names none; says why.
    """
    if seed is not None and not 0 <= seed < 1 << 64:
        raise InvalidInput(f"a seed is a number from 0 to {(1 << 64) - 1}, not {seed}")
    drawn = int.from_bytes(os.urandom(_SEED_BYTES)) if seed is None else seed
    clean = text.strip()
    if found := _PERCENT.fullmatch(clean):
        share = Fraction(found[1]) / 100
        if not 0 < share <= 1:
            raise InvalidInput(f"{text!r} is no part of the data: from above 0 % to 100 %")
        return Share(share, clean, drawn)
    if found := _PART.fullmatch(clean):
        number, parts = int(found[1]), int(found[2])
        if not 1 <= number <= parts:
            raise InvalidInput(f"{text!r} names no part: the first of seven is 1/7, the last 7/7")
        return Part(number, parts)
    hint = 'write "5%", "1/7" (the first of seven parts) or "10G"'
    try:
        nbytes = parse_size(clean)
    except InvalidInput as error:
        raise InvalidInput(f"{text!r} names no part of the data", hint=hint) from error
    if not nbytes:
        raise InvalidInput(f"{text!r} names no part of the data", hint=hint)
    return Amount(nbytes, clean, drawn)


def prove(
    handle: Handle,
    level: Level,
    sample: str | None,
    seed: int | None,
    no_key: bool,
    repair_from: "str | os.PathLike[str] | Handle | None",
    dry_run: bool,
) -> VerifyReport:
    """Verify, and heal where a copy is given; see `Repository.verify`."""
    if seed is not None and sample is None:
        raise InvalidInput("a seed draws a sample, and none is asked for", hint='sample="5%" is one')
    if dry_run and repair_from is None:
        raise InvalidInput("dry_run says what a repair would do, and none is asked for", hint="name a copy")
    settings = handle.settings
    if no_key:
        if sample is not None or repair_from is not None or level not in ("links", "records"):
            raise InvalidInput("without a key there is one depth, no sample and no repair")
        return verify_records(settings.layout, settings.observer)
    chosen = parse_sample(sample, seed) if sample is not None else None
    if repair_from is None:
        return verify(handle.db, level, threads=settings.threads, observer=settings.observer, sample=chosen)
    if isinstance(repair_from, Handle):
        return _repair(handle, repair_from.db, level, chosen, dry_run)
    there = where_it_is(make_settings(repair_from, key=settings.key, readonly=True))
    core = share(there)
    try:
        return _repair(handle, core.db, level, chosen, dry_run)
    finally:
        release(core)


def _repair(handle: Handle, source: LocalDatabase, level: Level, sample: Sample | None, dry_run: bool) -> VerifyReport:
    """Heal log and index from each other first: everything else is looked up in them."""
    settings = handle.settings
    check_source(handle.db, source)
    first = verify(handle.db, "quick", threads=settings.threads, observer=silent)
    broken = [damage for damage in first.damaged if damage.check in ("index", "log")]
    if broken and not dry_run:
        settings.observer(Notice("rebuild-index", "the log or the index is damaged: they are made anew first"))
        rebuild_open(handle)
    report = verify_and_repair(
        handle.db,
        source,
        level,
        threads=settings.threads,
        observer=settings.observer,
        sample=sample,
        dry_run=dry_run,
    )
    if broken and not dry_run:
        left = {damage.key for damage in report.damaged}
        report.healed = [*(damage for damage in broken if damage.key not in left), *report.healed]
    return report


def newest_good(handle: Handle, branch: str | None) -> Commit:
    """Return the newest commit of a branch that is whole; see `Repository.latest_good`."""
    ref = branch_ref(branch) if branch is not None else handle.branch or HEAD
    if handle.ref_target(ref) is None and branch is not None:
        raise RevisionNotFound(branch, why="there is no such branch")
    settings = handle.settings
    found = latest_good(handle.db, ref, threads=settings.threads, observer=settings.observer)
    if found is None:
        raise SnapshotNotFound(f"no commit of {short_name(ref)} is whole", hint="`chain verify --read-data` says why")
    return found


def verify_without_key(
    path: str | os.PathLike[str], *, index_dir: str | os.PathLike[str] | None = None, observer: Observer = silent
) -> VerifyReport:
    """Verify the repository at `path` as far as that can be done without its key; nothing is changed.

    Checks checksums of every record in the packs, the structure of the index, the framing and order of the log, and the
    small files.  Damage is named by pack, offset and object id; commits and paths are sealed.

    Raises:
        RepositoryNotFound: there is none.
    """
    settings = where_it_is(make_settings(path, index_dir=index_dir, observer=observer))
    if not settings.layout.exists():
        raise RepositoryNotFound(str(settings.root))
    return verify_records(settings.layout, observer)


def heal_small_files(
    path: str | os.PathLike[str], copy: str | os.PathLike[str] | None = None, *, dry_run: bool = False
) -> list[str]:
    """Heal `format` and `keyring` of a repository that cannot be opened without them; return which were written.

    Args:
        copy: another repository of the same chain, asked where both of a pair are damaged.
        dry_run: change nothing, and return [].

    Raises:
        RepositoryNotFound: there is none.
    """
    settings = where_it_is(make_settings(path))
    if not settings.layout.exists():
        raise RepositoryNotFound(str(settings.root))
    other = where_it_is(make_settings(copy)).layout if copy is not None else None
    return [] if dry_run else heal_files(settings.layout, other, surroundings().who)
