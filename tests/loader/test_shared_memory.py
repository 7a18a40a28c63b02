"""C43 and C44: few descriptors, and a small /dev/shm, a read-only one or none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SHARED_MEMORY = Path(__file__).with_name("small_shm.py")

DESCRIPTORS = """
import os, resource, torch
import fastfeed as ff

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

class Samples:
    def __len__(self):
        return 6000
    def __getitem__(self, index):
        used = len(os.listdir("/proc/self/fd"))
        fields = {f"k{k}": torch.tensor(index + k) for k in range(30)}
        return {**fields, "used": torch.tensor(used), "label": torch.tensor(index)}

def opened():
    return len(os.listdir("/proc/self/fd"))

loader = ff.DataLoader(Samples(), batch_size=2, num_workers=3, persistent_workers=True)
labels, used, most = [], [], opened()
for epoch in range(2):
    for number, batch in enumerate(loader):
        labels.append(batch["label"])
        used.append(batch["used"])
        assert batch["k29"].tolist() == [2 * number + 29, 2 * number + 30]
        if (epoch, number) == (0, 100):
            most = opened()
        if number > 100:
            assert opened() <= most
assert torch.cat(labels).tolist() == [*range(6000), *range(6000)]
in_workers = torch.cat(used)
assert int(in_workers.max()) < 40
print(most, int(in_workers[-1000:].max()) <= int(in_workers[:1000].max()))
"""


@pytest.mark.filterwarnings("error")
def test_c43_sixty_four_descriptors_and_every_label_is_kept():
    """6,000 samples of 32 fields twice under RLIMIT_NOFILE 64: descriptors of all stay flat."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", DESCRIPTORS],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    most, flat_in_workers = done.stdout.split()
    assert int(most) < 40
    assert flat_in_workers == "True"


def namespace():
    """Return the command that gives a program mounts of its own, None if nothing here can."""
    for options in (["-m"], ["-r", "-m"]):
        command = ["unshare", *options]
        probe = [*command, "mount", "-t", "tmpfs", "-o", "size=1m", "probe", "/dev/shm"]
        try:
            if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
                return command
        except OSError:
            return None
    return None


def test_c44_a_small_or_absent_dev_shm_does_not_matter(tmp_path):
    """8 MB batches, 32 of them kept, with 64, 16 and 1 MB, read-only and none at all: all work.

    Batches lie in memory files, which no mount limits; so neither SIGBUS nor an error.
    """
    command = namespace()
    if command is None:
        pytest.skip("C44 needs the right to mount: run as root, or where user namespaces may be")
    done = subprocess.run(
        [*command, sys.executable, "-W", "ignore", str(SHARED_MEMORY), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    names = ["64 MB", "16 MB", "1 MB", "read-only", "absent"]
    assert (done.stdout.splitlines(), done.stderr, done.returncode) == (names, "", 0)
