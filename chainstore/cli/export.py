"""Export: what `checkout -o` does with an output that may be there already: compare, refuse, write, delete."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chainstore.cli.app import App
from chainstore.cli.folder import ABSENT, EQUAL, Folder, check_names
from chainstore.cli.formats import FOLDERS, Choice, plan
from chainstore.cli.wording import count
from chainstore.errors import AlreadyExists, InvalidInput
from chainstore.lazy import Snapshot


@dataclass(frozen=True, slots=True)
class Written:
    """One file: its name below the output folder, its bytes, and what stood in its place.

    Attributes:
        unchanged: an equal one, which was left alone.  replaced: another one.
    """

    name: str
    nbytes: int
    unchanged: bool
    replaced: bool

    def fields(self) -> dict[str, object]:
        return {"name": self.name, "nbytes": self.nbytes, "unchanged": self.unchanged, "replaced": self.replaced}


@dataclass(slots=True)
class Export:
    """What was done, or in a dry run would be.

    Attributes:
        files: of the snapshot.  deleted, foreign: other files in the output folder, gone or left there.
    """

    files: list[Written] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)


def export(
    app: App,
    snapshot: Snapshot,
    output: Path,
    form: str,
    choice: Choice,
    *,
    force: bool = False,
    delete: bool = False,
    dry_run: bool = False,
) -> Export:
    """Write what a snapshot holds, or the selected part of it.

    What is there and equal is left alone.  Anything else that is there is a reason to refuse, before anything is
    written, unless `force` (replace what differs, leave what is foreign) or `delete` (replace, and delete what is
    foreign) is given.

    Args:
        form: one of FORMATS.

    Raises:
        AlreadyExists: there is something else at `output`.
        PathNotFound: nothing is selected.
        InvalidInput: a name would leave the folder, or an array has no place in this format.
    """
    single = form not in FOLDERS
    _check_output(app, output, single, delete)
    parts = plan(app, snapshot, form, choice, output.name)
    check_names(parts)
    folder = Folder(output.absolute().parent if single else output)
    found = [folder.compare(part) for part in parts]
    foreign = [] if single else folder.foreign(parts)
    different = ["/".join(p.name) for p, state in zip(parts, found, strict=True) if state not in (ABSENT, EQUAL)]
    if (different or foreign) and not force and not delete:
        refusal = _in_the_way(output, different, foreign, single)
        if not dry_run:
            raise refusal
        app.out.say(f"this would be refused: {refusal}; {refusal.hint}")
    done = Export(foreign=[] if delete else foreign, deleted=foreign if delete else [])
    if not dry_run:
        app.so_far = f"files in {output} may have been written or not, each of them whole; run it again"
    for part, state in zip(parts, found, strict=True):
        nbytes = part.nbytes if dry_run or state == EQUAL else folder.put(part)
        done.files.append(Written("/".join(part.name), nbytes, state == EQUAL, state not in (ABSENT, EQUAL)))
    if delete and not dry_run:
        folder.remove(foreign)
    return done


def _check_output(app: App, output: Path, single: bool, delete: bool) -> None:
    place, repository = output.absolute().resolve(), app.place().resolve()
    if single and place.is_dir():
        raise InvalidInput(f"{output} is a folder", hint="name a file, or use --format dir or hf")
    if not single and place.exists() and not place.is_dir():
        raise InvalidInput(f"{output} is a file", hint="name a folder, or another --format")
    if repository in (place, *place.parents):
        raise InvalidInput(f"{output} is inside the repository; nothing is written there")
    precious = [repository, Path.cwd().resolve(), Path(os.path.expanduser("~")).resolve()]
    if delete and any(place in (path, *path.parents) for path in precious):
        raise InvalidInput(
            f"{output} holds the repository, the current folder or your home; --delete does not touch those",
            hint="name a folder of its own",
        )


def _in_the_way(output: Path, different: Sequence[str], foreign: Sequence[str], single: bool) -> AlreadyExists:
    if single:
        return AlreadyExists(f"{output} exists and is another file", hint="--force replaces it")
    reasons = []
    if different:
        reasons.append(f"{count(len(different), 'file')} with other content ({_listed(different)})")
    if foreign:
        reasons.append(f"{count(len(foreign), 'file')} that the commit does not hold ({_listed(foreign)})")
    return AlreadyExists(
        f"{output} exists, with {' and '.join(reasons)}",
        hint="--force replaces what differs and leaves the rest, --delete also deletes what the commit does not hold",
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
