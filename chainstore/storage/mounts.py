"""Which file system a path lies on, told from the text of `/proc/self/mountinfo`.  Pure: `fs` reads the file.

statvfs has no type, and the magic number that statfs gives for FUSE is one for all of them, a Gluster volume and
a local test file system alike; the type in mountinfo tells them apart.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

NETWORK_TYPES = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "cvmfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "pvfs2",
        "smb2",
        "smb3",
        "smbfs",
        "virtiofs",
        "wekafs",
    }
    | {
        f"fuse.{name}"
        for name in (
            "beegfs",
            "ceph",
            "cvmfs",
            "dfuse",
            "gcsfuse",
            "geesefs",
            "glusterfs",
            "goofys",
            "juicefs",
            "mountpoint-s3",
            "objectivefs",
            "rclone",
            "s3fs",
            "seaweedfs",
            "smbnetfs",
            "sshfs",
        )
    }
)
"""File systems that another host may have mounted too.  Plain `fuse` says nothing and is taken as local."""

_SHARED_LOCKS = frozenset({"ceph", "cifs", "gfs2", "lustre", "nfs", "nfs4", "ocfs2", "smb3"})
_LOCAL_LOCKS = frozenset(
    {"nolock", "noflock", "localflock", "localflocks", "local_lock=all", "local_lock=flock", "nobrl"}
)
"""Mount options that keep `flock` on this machine: nfs(5), mount.lustre(8), mount.cifs(8), gfs2(5), ocfs2."""

_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo.

    Attributes:
        point: where it is mounted, absolute.
        type: "ext4", "nfs4", "fuse.sshfs"...
        options: of the mount and of the file system together ("ro", "nolock", "localflock"...).
    """

    point: str
    type: str
    options: frozenset[str]

    @property
    def network(self) -> bool:
        """Whether another host may have it mounted too."""
        return self.type in NETWORK_TYPES

    @property
    def shares_locks(self) -> bool:
        """Whether a `flock` held here is known to be seen by everybody else who has this file system mounted.

        Of FUSE, and of others that ask a setting on the server, it is not known: their locks may end at this machine.
        """
        return not self.network or (self.type in _SHARED_LOCKS and not self.options & _LOCAL_LOCKS)


NOWHERE = Mount("/", "", frozenset())
"""What is known where there is no mountinfo: nothing."""


def parse_mounts(text: str) -> list[Mount]:
    r"""Return the mounts that `text` lists, in its order; lines that make no sense are passed over.

    The kernel writes space, tab, newline and backslash in a mount point as octal (`\040`).

    Source: proc_pid_mountinfo(5).
    """
    mounts = []
    for line in text.split("\n"):
        left, dash, right = line.partition(" - ")
        before, after = left.split(" "), right.split(" ")
        if dash and len(before) >= 6 and after[0]:
            options = before[5].split(",") + (after[2].split(",") if len(after) > 2 else [])
            mounts.append(Mount(_unescape(before[4]), after[0], frozenset(options)))
    return mounts


def mount_of(path: str, mounts: Iterable[Mount]) -> Mount:
    """Return the mount that `path` (absolute, links resolved) lies on: longest prefix, the later of equals.

    A later line with the same mount point was mounted over the earlier one and hides it.
    """
    best = NOWHERE
    for mount in mounts:
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if inside and len(mount.point) >= len(best.point):
            best = mount
    return best


def _unescape(text: str) -> str:
    """Undo the kernel's octal escapes, which stand for bytes of the mount point."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)
