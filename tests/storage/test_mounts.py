"""The file system under a path, from the text of mountinfo."""

import pytest

from chainstore.storage.mounts import NETWORK_TYPES, NOWHERE, mount_of, parse_mounts

MOUNTINFO = r"""
22 27 0:20 / /proc rw,nosuid - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
40 27 0:35 / /home/ada rw shared:9 master:1 - nfs4 server:/home rw,vers=4.2,local_lock=none
41 40 0:36 / /home/ada/scratch rw - tmpfs none rw,size=1024k
42 27 0:37 / /mnt/with\040space\134and\011tab rw - fuse.sshfs ada@host: rw,user_id=0
43 27 0:38 / /data rw - ext4 /dev/vdb rw
44 43 0:39 / /data ro,nolock - nfs server:/data rw
45 27 0:40 / /mnt/\303\251t\303\251 rw - lustre mgs:/l rw,localflock
46 27 0:41 / /fuse rw - fuse forgetful rw
a line that makes no sense
47 27 - ext4 / rw
"""


def type_at(path: str) -> str:
    return mount_of(path, parse_mounts(MOUNTINFO)).type


@pytest.mark.parametrize(
    ("path", "type"),
    [
        ("/", "ext4"),
        ("/var/lib", "ext4"),
        ("/proc/self", "proc"),
        ("/home", "ext4"),
        ("/home/ada", "nfs4"),
        ("/home/ada/runs", "nfs4"),
        ("/home/ada/scratch/x", "tmpfs"),
        ("/home/adam", "ext4"),
    ],
)
def test_the_longest_mount_point_above_a_path_decides(path, type):
    assert type_at(path) == type


def test_octal_escapes_in_mount_points_are_undone():
    assert type_at("/mnt/with space\\and\ttab/run") == "fuse.sshfs"
    assert type_at("/mnt/with") == "ext4"


def test_octal_escapes_stand_for_bytes():
    assert type_at("/mnt/été/run".encode().decode("latin-1")) == "lustre"


def test_a_mount_over_another_hides_it():
    assert type_at("/data/run") == "nfs"


def test_options_of_mount_and_file_system_are_both_known():
    assert {"ro", "nolock"} <= mount_of("/data", parse_mounts(MOUNTINFO)).options
    assert "localflock" in mount_of("/mnt/été".encode().decode("latin-1"), parse_mounts(MOUNTINFO)).options


@pytest.mark.parametrize("path", ["/home/ada/run", "/mnt/with space\\and\ttab/run", "/data"])
def test_file_systems_that_other_hosts_may_mount_are_network_file_systems(path):
    assert mount_of(path, parse_mounts(MOUNTINFO)).network


def test_plain_fuse_and_local_disks_are_no_network_file_systems():
    assert not mount_of("/fuse/run", parse_mounts(MOUNTINFO)).network
    assert not mount_of("/var", parse_mounts(MOUNTINFO)).network
    assert "fuse" not in NETWORK_TYPES


@pytest.mark.parametrize(
    ("type", "options", "shared"),
    [
        ("ext4", "rw", True),
        ("fuse", "rw", True),
        ("nfs4", "rw,local_lock=none", True),
        ("nfs", "rw,local_lock=posix", True),
        ("nfs", "rw,local_lock=all", False),
        ("nfs", "rw,local_lock=flock", False),
        ("nfs", "rw,nolock", False),
        ("lustre", "rw,flock", True),
        ("lustre", "rw,localflock", False),
        ("lustre", "rw,noflock", False),
        ("cifs", "rw,nobrl", False),
        ("ceph", "rw", True),
        ("beegfs", "rw", False),
        ("fuse.glusterfs", "rw", False),
        ("fuse.sshfs", "rw", False),
    ],
)
def test_locks_are_shared_where_that_is_known(type, options, shared):
    (mount,) = parse_mounts(f"1 2 0:3 / /data rw - {type} server:/x {options}")
    assert mount.shares_locks == shared


def test_nothing_is_known_without_mounts():
    assert mount_of("/x", []) == NOWHERE
    assert not NOWHERE.network
