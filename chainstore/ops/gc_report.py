"""What a garbage collection found and did, as a value."""

from dataclasses import dataclass, field

from chainstore.display import count, size, table


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes of one class, and why they are kept.

    Attributes:
        why: "branch", "tag", "reflog", "reader", "base" for objects; "writer" (a pack that somebody is writing to),
            "scattered" (useless bytes that would cost more to move around than they free).
        objects: how many; 0 where it is not about objects.
    """

    why: str
    objects: int
    stored_bytes: int


@dataclass(slots=True)
class GcReport:
    """What a garbage collection did, or would do (`dry_run`).

    Attributes:
        nothing_to_do: nothing happened since the last one that left something to collect.
        forgotten: commits that the stored policy dropped just before.
        swept: forgotten commits that cannot come back any more.
        commits, objects: how many were removed, commits among the objects.
        useless_bytes: of packs, before: records that nothing leads to, and what was stored again elsewhere.
        freed_bytes: by which the files became smaller on disk, as the file system counts.
        moved_bytes: of records that were copied into another pack so that theirs could go.
        recoded_bytes: of records that were coded anew, so that what they were differences to could go.
        packs_removed: how many files.
        reflog_lines: how many expired.
        kept: what stays, by why.
        left: sentences about what was not looked at or not removed, and why.
        foreign: files in the repository that are not ours; they are left alone.
    """

    dry_run: bool = False
    nothing_to_do: bool = False
    forgotten: int = 0
    swept: int = 0
    commits: int = 0
    objects: int = 0
    useless_bytes: int = 0
    freed_bytes: int = 0
    moved_bytes: int = 0
    recoded_bytes: int = 0
    packs_removed: int = 0
    reflog_lines: int = 0
    kept: list[Kept] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        if self.nothing_to_do:
            return "<GcReport nothing to do>"
        if self.dry_run:
            return f"<GcReport {size(self.useless_bytes)} to free, {count(self.objects, 'object')} to remove>"
        return f"<GcReport {size(self.freed_bytes)} freed, {count(self.objects, 'object')} removed>"

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        rows = [("useless", size(self.useless_bytes)), ("freed", size(self.freed_bytes))]
        rows += [(f"kept: {kept.why}", size(kept.stored_bytes)) for kept in self.kept]
        return table("garbage collection" + (" (dry run)" if self.dry_run else ""), rows)
