"""Mounted file systems with what NFS counts for each, from /proc/self/mountstats; pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fastfeed.topology.files import integer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# File systems whose reads cross a network, as far as their names tell.
NETWORK: Final = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "lustre",
        "ceph",
        "beegfs",
        "gpfs",
        "glusterfs",
        "afs",
        "orangefs",
        "wekafs",
        "panfs",
        "fuse.s3fs",
        "fuse.gcsfuse",
        "fuse.goofys",
        "fuse.rclone",
        "fuse.sshfs",
        "fuse.juicefs",
        "fuse.ceph",
        "fuse.glusterfs",
        "fuse.blobfuse",
        "fuse.blobfuse2",
        "fuse.mount-s3",
        "fuse.alluxio-fuse",
    ]
)
# File systems that hold no data of anyone's.
_NONE: Final = frozenset(
    [
        "proc",
        "sysfs",
        "devtmpfs",
        "devpts",
        "tmpfs",
        "cgroup",
        "cgroup2",
        "pstore",
        "bpf",
        "tracefs",
        "debugfs",
        "securityfs",
        "mqueue",
        "hugetlbfs",
        "configfs",
        "fusectl",
        "autofs",
        "rpc_pipefs",
        "nsfs",
        "efivarfs",
        "binfmt_misc",
        "ramfs",
        "selinuxfs",
    ]
)
READS: Final = ("READ", "READ_PLUS")
METADATA: Final = [
    "GETATTR",
    "LOOKUP",
    "ACCESS",
    "OPEN",
    "OPEN_NOATTR",
    "OPEN_CONFIRM",
    "CLOSE",
    "READDIR",
    "READDIRPLUS",
    "READLINK",
    "STATFS",
]


@dataclass(frozen=True, slots=True)
class Operation:
    """One kind of request to a server, counted since the mount."""

    requests: int
    sent: int
    """Requests as sent: more than `requests` where some had to be sent again."""
    timeouts: int
    received_bytes: int
    wait_ms: int
    """Round trips of all requests together."""


@dataclass(frozen=True, slots=True)
class Mount:
    """One mounted file system."""

    folder: str
    kind: str
    operations: Mapping[str, Operation] = field(default_factory=dict)
    """By name; NFS alone counts them."""

    @property
    def network(self) -> bool:
        """Whether its reads cross a network."""
        return self.kind in NETWORK

    @property
    def holds_data(self) -> bool:
        """Whether files of users may lie on it."""
        return self.kind not in _NONE


def mounts(text: str) -> list[Mount]:
    """Return the mounts of a text of mountstats, the later of two at one folder."""
    found: dict[str, Mount] = {}
    operations: dict[str, Operation] = {}
    for line in text.splitlines():
        head = re.match(r"device .* mounted on (.*) with fstype (\S+)", line)
        if head:
            operations = {}
            folder = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), head[1])
            found[folder] = Mount(folder, head[2], operations)
            continue
        name, colon, rest = line.strip().partition(": ")
        words = [integer(word) for word in rest.split()]
        # name: ops, transmissions, timeouts, bytes sent, bytes received, queue, round trip, all ms
        if colon and len(words) >= 8 and name.isupper() and None not in words:
            values = [word or 0 for word in words]
            operations[name] = Operation(values[0], values[1], values[2], values[4], values[6])
    return list(found.values())


def mount_of(path: str, found: Iterable[Mount]) -> Mount | None:
    """Return the mount that a path lies on; None if no folder fits."""
    inside = [
        mount
        for mount in found
        if path == mount.folder or path.startswith(f"{mount.folder.rstrip('/')}/")
    ]
    return max(inside, key=lambda mount: len(mount.folder), default=None)


def since(before: Mount | None, after: Mount) -> dict[str, Operation]:
    """Return what a mount did between two looks, by operation."""
    first = before.operations if before else {}
    zero = Operation(0, 0, 0, 0, 0)
    return {
        name: Operation(
            max(0, last.requests - first.get(name, zero).requests),
            max(0, last.sent - first.get(name, zero).sent),
            max(0, last.timeouts - first.get(name, zero).timeouts),
            max(0, last.received_bytes - first.get(name, zero).received_bytes),
            max(0, last.wait_ms - first.get(name, zero).wait_ms),
        )
        for name, last in after.operations.items()
    }
