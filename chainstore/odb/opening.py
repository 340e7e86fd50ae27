"""Opening: a local database made in an empty directory, or opened where one is, distrusted until it was looked at.

An index is trusted where it lies as it was left: by this machine, after a clean end.  A copy, a backup that was put
back, or a machine that went down is walked first, page by page.  Where the index in force is on another machine,
writers take over (`take_over`) and readers make one of their own (`private`).
"""

from dataclasses import replace
from pathlib import Path

from chainstore.errors import Damaged, Malformed, StaleKeyring, StorageError
from chainstore.leases import publish_lock
from chainstore.model.change import Checkpoint, SetKeyring, Target, encode_changes
from chainstore.odb.editor import Editor
from chainstore.odb.identity import check_repository
from chainstore.odb.layout import Format, Layout, Owner
from chainstore.odb.local import LocalDatabase
from chainstore.odb.places import place_index, tell
from chainstore.odb.private import PrivateIndex
from chainstore.odb.publisher import ROOM, no_records
from chainstore.odb.record import Sealer
from chainstore.odb.surroundings import Surroundings
from chainstore.odb.take_over import check_take_over, is_elsewhere, take_over
from chainstore.storage import fs
from chainstore.storage.index import Index
from chainstore.storage.log import BEGINNING, Log

VERIFY_ALWAYS_BYTES = 64 << 20  # an index up to this size is walked at every writing open (7-10 ms a MB)
_SPARE_PAGES = 48
_SPARE_ROW_BYTES = 4000  # one takes a page of its own
_HEAL = "`chain rebuild-index` makes it anew from the log and the packs"


def create_local(
    layout: Layout,
    format: Format,
    sealer: Sealer,
    keyring_number: int,
    around: Surroundings,
    *,
    head: Target,
    config: dict[str, str],
) -> LocalDatabase:
    """Make an empty database in a directory whose folders exist; `format` is written last, by the caller."""
    layout = place_index(layout, format.repo_id)
    for segment in Log(layout.log).segments():
        fs.unlink(Log(layout.log).path(segment))  # left by an init that was cut off
    point = Checkpoint(format.hash, keyring_number, (("HEAD", head),), tuple(config.items()), (), (), ())
    time_us = around.now_us()
    line = sealer.seal_line(1, bytes(32), encode_changes(time_us, [point]))
    at = Log(layout.log).append(line, BEGINNING, new_segment=True)
    uuid = around.random(16).hex()
    index = Index.create(layout.index(uuid))
    index.ensure_room(ROOM)
    with index.write() as rows:
        editor = Editor(rows, sealer)
        editor.identify(format.repo_id, format.hash, keyring_number)
        editor.restore(point, no_records)
        editor.apply(at, line, time_us, [point], no_records)
    _make_spare_pages(index)
    owner = Owner(uuid, index.inode[1], around.host, layout.outside)
    layout.write_owner(owner)
    if layout.on_network and layout.index_dir is None:
        tell(around, layout, f"{layout.root} is on a network disk")
    return LocalDatabase(layout, sealer, index, owner, around, readonly=False)


def open_local(
    layout: Layout,
    format: Format,
    sealer: Sealer,
    keyring_number: int,
    around: Surroundings,
    *,
    readonly: bool,
    take_over: bool = False,
) -> LocalDatabase:
    """Open the database of a directory.

    Args:
        take_over: write, although the index in force is on another machine and locks may not reach it.

    Raises:
        Damaged: the index is missing or broken, or does not fit the log; `rebuild-index` heals it.
        IndexElsewhere: another machine writes to it, as far as can be known.
        WrongRepository, StaleKeyring: files of another repository or of another time lie here.
    """
    layout = place_index(layout, format.repo_id)
    if readonly:
        db = _open_for_reading(layout, sealer, around)
    else:
        index, owner = _open_for_writing(layout, format, sealer, around, take_over)
        db = LocalDatabase(layout, sealer, index, owner, around, readonly=False)
    try:
        in_force = _check_identity(db, sealer, format, keyring_number)
        db.attach()
        if keyring_number > in_force and not readonly:
            _settle_keyring(db, keyring_number)
    except BaseException:
        db.close()
        raise
    return db


def _open_for_writing(
    layout: Layout, format: Format, sealer: Sealer, around: Surroundings, taking: bool
) -> tuple[Index, Owner]:
    fs.make_dirs(layout.leases)  # a copy may lack it
    with publish_lock(layout.leases, around.who) as unclean:  # nobody puts another index in force meanwhile
        layout.complete()
        owner = layout.read_owner()
        if is_elsewhere(layout, owner):
            check_take_over(layout, owner, asked=taking)
            owner = take_over(layout, format, sealer, around, owner)
            return Index.open(layout.index(owner.uuid)), owner
        path = layout.index(owner.uuid)
        if unclean or _size(path) <= VERIFY_ALWAYS_BYTES:
            _walk(path)
        owner = _known_inode(layout, path, owner, around, adopt=True)
        return Index.open(path), owner


def _open_for_reading(layout: Layout, sealer: Sealer, around: Surroundings) -> LocalDatabase:
    while True:
        try:
            owner = layout.read_owner()
            lost = not layout.has_index(owner.uuid)
        except Damaged:
            if fs.may_write(layout.root):
                raise
            lost = True  # and nobody can put one there
        if lost and (not fs.may_write(layout.root) or is_elsewhere(layout, owner)):
            private = PrivateIndex(layout, sealer, around)
            return LocalDatabase(layout, sealer, *private.open(), around, readonly=True, private=private)
        path = layout.index(owner.uuid)
        try:
            owner = _known_inode(layout, path, owner, around, adopt=False)
            return LocalDatabase(layout, sealer, Index.open(path, readonly=True), owner, around, readonly=True)
        except (Damaged, StorageError):
            if layout.read_owner().uuid == owner.uuid:
                raise
            # else it was rebuilt meanwhile


def _make_spare_pages(index: Index) -> None:
    """Leave free pages in a new index.

    Every transaction of LMDB writes the pages it touches anew, a dozen for a small commit, and takes free ones for
    that only where an older transaction left some; without these the first commits each grow the file by 40 KB.
    """
    rows = [number.to_bytes(2, "big") for number in range(_SPARE_PAGES)]
    with index.write() as out:
        for row in rows:
            out.put("meta", b"spare" + row, bytes(_SPARE_ROW_BYTES))
    with index.write() as out:
        for row in rows:
            out.delete("meta", b"spare" + row)
    with index.write() as out:  # a page that was freed is used again only two transactions later
        out.put("meta", b"spare", b"")


def _known_inode(layout: Layout, path: Path, owner: Owner, around: Surroundings, *, adopt: bool) -> Owner:
    """Look at an index that was put here (a copy, a backup) before it is trusted."""
    try:
        inode = fs.inode_of(path / "data.mdb")[1]
    except FileNotFoundError:
        raise Damaged(f"the index of {layout.root} is missing", hint=_HEAL) from None
    if inode == owner.inode:
        return owner
    _walk(path)
    owner = replace(owner, inode=inode, host=around.host)
    if adopt:
        layout.write_owner(owner)
    return owner


def _walk(path: Path) -> None:
    problems = Index.verify_file(path)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise Damaged(f"the index is damaged: {problems[0]}{more}", hint=_HEAL)


def _size(path: Path) -> int:
    data = path / "data.mdb"
    return fs.size_of(data) if fs.exists(data) else 0


def _settle_keyring(db: LocalDatabase, number: int) -> None:
    """Finish a change of the key slots whose process died before the log said so.

    Perhaps their name is not on the disk yet: what we open with must not turn into the old ones with a power cut.
    """
    with db.turn() as turn:
        with turn.view() as view:
            _, _, known = view.identity()
        if known < number:
            fs.sync_dir(db.layout.root)
            turn.publish([SetKeyring(number)])


def _check_identity(db: LocalDatabase, sealer: Sealer, format: Format, keyring_number: int) -> int:
    """Return the number of the key slots that log and index know."""
    format_hash, keyring = check_repository(db.index, db.layout, sealer)
    if format_hash != format.hash:
        raise Malformed("format", "it is not the file this repository was last used with")
    if keyring_number < keyring:
        raise StaleKeyring(
            f"the key slots are number {keyring_number}, but number {keyring} is in force",
            hint="restore `keyring` and `keyring.bak` from the newest copy of the repository",
        )
    return keyring
