"""What is found of a cache folder's disk."""

from __future__ import annotations

import os
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.errors import StorageError
from fastfeed.staging.disk import file_system_of, inspect, kind_of

MOUNTS = r"""22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:5 / /dev/shm rw - tmpfs tmpfs rw
24 22 0:50 / /data rw shared:1 - nfs4 server:/data rw
25 24 8:1 / /data/nvme\040one rw - xfs /dev/nvme0n1 rw
26 22 0:51 / /database rw - ceph mon:/ rw
27 22 0:52 / /twice rw - ext4 /dev/a rw
28 27 0:53 / /twice rw - lustre l@tcp:/fs rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/x", ("ext4", "local")),
        ("/dev/shm/x", ("tmpfs", "memory")),
        ("/data", ("nfs4", "network")),
        ("/data/nvme one/x", ("xfs", "local")),
        ("/database/x", ("ceph", "network")),
        ("/twice", ("lustre", "network")),
    ],
)
def test_the_mount_that_holds_a_path(path, kind):
    """The deepest mount counts, of two at one place the later; names are compared whole."""
    found = file_system_of(MOUNTS, path)
    assert (found, kind_of(found)) == kind


def test_kinds():
    """Overlays and the many network drives are told from disks; what is not known is said so."""
    assert kind_of("overlay") == "overlay"
    assert {kind_of(name) for name in ("fuse.sshfs", "9p", "gpfs", "nfs", "smb3")} == {"network"}
    assert kind_of("newfs") == kind_of("") == "unknown"


@given(st.text())
def test_any_text_of_mounts(text):
    """A list that the kernel never wrote is no error."""
    file_system_of(text, "/a/b")
    file_system_of(f"1 2 3 / {text} - {text}", "/a/b")


def test_this_disk(tmp_path, leak_gauge):
    """The folder's disk is looked at, and nothing is left in it."""
    ticks = count()
    disk = inspect(tmp_path, clock=lambda: next(ticks) / 100)
    assert disk.write_rate == pytest.approx(disk.read_rate) == pytest.approx((8 << 20) * 100)
    assert disk.free_bytes > 0
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) in str(disk)


def test_bad_places_are_told(tmp_path):
    """A network drive, memory, and a slow disk each come with advice; a good disk with none."""
    mounts = tmp_path / "mountinfo"

    def found(kind, seconds=0.001):
        mounts.write_text(f"1 0 0:1 / / rw - {kind} x rw\n")
        ticks = count()
        return inspect(tmp_path, mounts=mounts, clock=lambda: next(ticks) * seconds).warning

    assert found("xfs") is None
    assert "name a local disk" in found("nfs")
    assert "memory" in found("tmpfs")
    assert "mount a local disk" in found("overlay")
    assert "84 MB/s" in found("ext4", seconds=0.1)


def test_where_nothing_can_be_written(tmp_path):
    """A folder that takes no file is an error that names it."""
    with pytest.raises(StorageError, match="missing"):
        inspect(tmp_path / "missing")


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    """Where there is no room nothing is written, and the advice is to make room."""
    status = os.statvfs(tmp_path)

    class Full:
        f_bavail, f_frsize = 100, status.f_frsize

    monkeypatch.setattr(os, "statvfs", lambda folder: Full)
    disk = inspect(tmp_path, mounts=tmp_path / "missing")
    assert disk.write_rate == 0
    assert "Make room" in disk.warning
