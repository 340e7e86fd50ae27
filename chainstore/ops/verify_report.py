"""What a verification found: values that the command line, notebooks and JUnit files are made from.

A damage names one thing; what many of them have in common (a lost pack) is said once by whoever shows them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from chainstore.display import count, size, table

Level = Literal["quick", "links", "data", "records"]
LEVELS: tuple[Level, ...] = ("quick", "links", "data")  # those that need the key; "records" is what needs none
CHECKS: dict[str, str] = {  # what is looked at -> in words
    "files": "the format file, the key slots and their backups",
    "index": "the structure of the index",
    "log": "every line of the commit log",
    "packs": "the length of every pack",
    "refs": "branches, tags, HEAD and their reflogs",
    "commits": "every reachable commit",
    "pages": "every tree page of a kept snapshot",
    "chunks": "every chunk of a kept snapshot",
    "records": "the checksums of every record in the packs",
}
COVERED: dict[Level, tuple[str, ...]] = {
    "quick": ("files", "index", "log", "packs", "refs"),
    "links": ("files", "index", "log", "packs", "refs", "commits", "pages", "chunks"),
    "data": ("files", "index", "log", "packs", "refs", "commits", "pages", "chunks"),
    "records": ("files", "index", "log", "packs", "records"),
}
_MOST_SHOWN = 20  # damages in a notebook


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is not as it was stored.

    Attributes:
        what: a sentence.
        id: the object, 64 hex digits, or "".
        commits: ids of the commits that are hit.  paths: what is hit in them; `model/**` stands for everything
            below, where the page that lists it is damaged itself.
        check: one of CHECKS.
        pack, offset: where its record lies, "" and -1 where it is no record or in no pack.
        why: what is wrong with it, without the names.
    """

    what: str
    id: str = ""
    commits: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    check: str = ""
    pack: str = ""
    offset: int = -1
    why: str = ""

    @property
    def key(self) -> str:
        """What this damage is told from others by, across two verifications."""
        return self.id or self.what


@dataclass(frozen=True, slots=True)
class DamageGroup:
    """Damages that have one cause, such as a lost pack.

    Attributes:
        what: a sentence.  size: how many they are.
        commits, paths: what they hit together, each once.
    """

    what: str
    size: int
    commits: tuple[str, ...]
    paths: tuple[str, ...]


@dataclass(slots=True)
class VerifyReport:
    """What a verification looked at and found; `damaged` is empty when all is well.

    Attributes:
        level: "quick", "links", "data", or "records" where it was done without a key.
        lines, refs, commits, pages, chunks: how many were looked at; pages and chunks are those that commits reach.
        read_bytes: of chunks at level "data", of records at level "records".
        records: in the packs, at level "records".
        sample, seed: which part of the chunks was read ("5%", "1/7", "10G"; "": all), and what the choice came from.
        chunks_read: at level "data".
        damaged: what is not as it was stored, and was not healed.
        healed: what was not, and is now.
        quarantined: files that hold what was damaged, relative to the repository.
        repaired_from: the repository that good objects were taken from.
        taken, taken_bytes: objects stored anew, and their plain bytes; with `dry_run` those that would be.
        dry_run: whether nothing was changed.
    """

    level: Level
    lines: int = 0
    refs: int = 0
    commits: int = 0
    pages: int = 0
    chunks: int = 0
    read_bytes: int = 0
    damaged: list[Damage] = field(default_factory=list)
    records: int = 0
    sample: str = ""
    seed: int | None = None
    chunks_read: int = 0
    healed: list[Damage] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)
    repaired_from: str = ""
    taken: int = 0
    taken_bytes: int = 0
    dry_run: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged (any more)."""
        return not self.damaged

    def __repr__(self) -> str:
        counts = {"log line": self.lines, "ref": self.refs, "commit": self.commits, "chunk": self.chunks}
        if self.level == "records":
            counts = {"log line": self.lines, "record": self.records}
        looked = ", ".join(count(number, noun) for noun, number in counts.items())
        return f"<VerifyReport {self.level}: {self._found()}; {looked}, {size(self.read_bytes)} read>"

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        names = ("lines", "records") if self.level == "records" else ("lines", "refs", "commits", "pages", "chunks")
        looked = [(name, getattr(self, name)) for name in names]
        damage = [("damaged", found.what) for found in self.damaged[:_MOST_SHOWN]]
        if len(self.damaged) > _MOST_SHOWN:
            damage.append(("damaged", f"and {len(self.damaged) - _MOST_SHOWN} more, in .damaged"))
        return table(f"verify {self.level}: {self._found()}", [*looked, ("read", size(self.read_bytes)), *damage])

    def _found(self) -> str:
        found = "all is well" if self.ok else f"{len(self.damaged)} damaged"
        return f"{found}, {len(self.healed)} healed" if self.healed else found


def grouped(damages: Iterable[Damage]) -> list[DamageGroup]:
    """Return damages with those of one kind, pack and cause put together, in the order of their first."""
    groups: dict[tuple[str, ...], list[Damage]] = {}
    for damage in damages:
        alone = not (damage.id and damage.why)
        groups.setdefault(("", damage.key) if alone else (damage.check, damage.pack, damage.why), []).append(damage)
    return [_group(members) for members in groups.values()]


def _group(members: list[Damage]) -> DamageGroup:
    first = members[0]
    if len(members) == 1:
        return DamageGroup(first.what, 1, first.commits, first.paths)
    commits: dict[str, None] = {}
    for told in {id(member.commits): member.commits for member in members}.values():  # many share one tuple
        commits.update(dict.fromkeys(told))
    paths = dict.fromkeys(path for member in members for path in member.paths)
    what = f"{count(len(members), first.check.removesuffix('s'))}: {first.why}"
    return DamageGroup(what, len(members), tuple(commits), tuple(paths))
