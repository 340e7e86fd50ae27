"""Limits: how much memory a process can still take before something is killed."""

from collections.abc import Iterator
from pathlib import Path


def memory_left(root: Path = Path("/")) -> int:
    """Return how many bytes this process can still take without anything being killed, as far as can be told.

    The least of what the host has available and of what the limit of each cgroup that this process is in leaves
    (version 2 and version 1); pages of files that were not used lately count as free there, as they do for the kernel.

    Args:
        root: of the file system, for `proc` and `sys`.
    """
    left = [_available(root / "proc/meminfo")]
    left += (_left_in(folder, "max", "current", "inactive_file") for folder in _cgroups(root, "cgroup2"))
    names = ("limit_in_bytes", "usage_in_bytes", "total_inactive_file")
    left += (_left_in(folder, *names) for folder in _cgroups(root, "cgroup"))
    return max(0, min((bytes_ for bytes_ in left if bytes_ is not None), default=1 << 62))


def _available(meminfo: Path) -> int | None:
    for line in _text(meminfo).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return None


def _left_in(folder: Path, limit: str, usage: str, reclaimable: str) -> int | None:
    """Return what the limit of one cgroup leaves, None where there is none."""
    most, taken = _text(folder / f"memory.{limit}").strip(), _text(folder / f"memory.{usage}").strip()
    if not (most.isdecimal() and taken.isdecimal()):
        return None
    stat = dict(line.split()[:2] for line in _text(folder / "memory.stat").splitlines() if " " in line)
    return int(most) - int(taken) + int(stat.get(reclaimable, 0))


def _cgroups(root: Path, kind: str) -> Iterator[Path]:
    """Yield the folders of the cgroups that limit the memory of this process: its own, and those above."""
    own = _own_cgroup(_text(root / "proc/self/cgroup"), kind)
    for line in _text(root / "proc/self/mountinfo").splitlines():
        fields, _, rest = line.partition(" - ")
        what = rest.split()
        if (
            len(fields.split()) < 5
            or not what
            or what[0] != kind
            or (kind == "cgroup" and "memory" not in what[-1].split(","))
        ):
            continue
        shown, mounted = fields.split()[3:5]
        top = root / mounted.lstrip("/")
        # Without a cgroup namespace a container sees paths of the host, and only its own part of them mounted.
        below = own.removeprefix(shown.rstrip("/")).strip("/")
        folder = top / below
        yield from (folder, *(above for above in folder.parents if above == top or top in above.parents))


def _own_cgroup(text: str, kind: str) -> str:
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (number == "0" and not controllers) if kind == "cgroup2" else "memory" in controllers.split(","):
            return path
    return "/"


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # not on this system
