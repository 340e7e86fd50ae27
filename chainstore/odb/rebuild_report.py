"""What a rebuild of the index found and did."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class RebuildReport:
    """What a rebuild found and did.

    Attributes:
        lines, objects, packs: how many there are now.
        log_healed: whether lines of the log were restored from the old index.
        lost_lines: whether lines that were acknowledged are in neither.
        problems: what is damaged and could not be healed, for people to read.
        moved: ref -> (from, to), where a ref's commit is gone and an older one took its place.
    """

    lines: int = 0
    objects: int = 0
    packs: int = 0
    log_healed: bool = False
    lost_lines: bool = False
    problems: list[str] = field(default_factory=list)
    moved: dict[str, tuple[str, str]] = field(default_factory=dict)
