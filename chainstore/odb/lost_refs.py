"""Lost refs: refs whose snapshot is not complete any more, set to the newest one of their reflog that is."""

from chainstore.errors import Damaged
from chainstore.ids import ObjectId
from chainstore.model.change import SetRef
from chainstore.model.commit import decode_commit
from chainstore.model.tree import Root, page_links
from chainstore.odb.local import LocalDatabase
from chainstore.odb.rebuild_report import RebuildReport


def move_lost_refs(db: LocalDatabase, report: RebuildReport) -> None:
    """Set refs whose snapshot is not complete to the newest one of their reflog that is."""
    changes = []
    for row in db.refs():
        if not isinstance(row.target, ObjectId) or _complete(db, row.target):
            continue
        with db.view() as view:
            older = [line.old for line in view.reflog(row.name)]
            older = [id for id in older if isinstance(id, ObjectId) and view.mark(id) is None]
        target = next((id for id in older if isinstance(id, ObjectId) and _complete(db, id)), None)
        report.problems.append(f"the commit of {row.name}, {row.target.short}, is damaged")
        if target is None and _readable(db, row.target):
            continue  # nothing better is left, and what reads of this one is not to be lost sight of
        report.moved[row.name] = (str(row.target), str(target) if target else "nothing")
        changes.append(SetRef(row.name, row.target, target, "rebuild-index: its commit is damaged"))
    if changes:
        db.publish(None, changes)


def _readable(db: LocalDatabase, commit: ObjectId) -> bool:
    try:
        decode_commit(commit, bytes(db.read(commit)))
    except Damaged:
        return False
    return True


def _complete(db: LocalDatabase, commit: ObjectId) -> bool:
    """Whether a commit and its tree read, and every chunk is stored; a forgotten one needs no more than itself."""
    try:
        tree = decode_commit(commit, bytes(db.read(commit))).tree
        with db.view() as view:
            if view.mark(commit) is not None:
                return True
        root = Root.from_bytes(bytes(db.read(tree)))
        seen = {page for page in (root.state, root.files, root.ranks) if page is not None}
        stack = list(seen)
        while stack:
            links = page_links(bytes(db.read(stack.pop())))
            stack += [page for page in links.pages if page not in seen]
            seen.update(links.pages)
            if not all(db.has(chunk) for chunk in links.chunks):
                return False
    except Damaged:
        return False
    return True
