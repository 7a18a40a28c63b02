"""The command: what it prints and writes, its exit codes, and one look at the machine at hand."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import time

import pytest

from fastfeed.doctor.capture import write_capture
from fastfeed.doctor.main import main, make_parser, run_doctor
from fastfeed.doctor.report import examine
from fastfeed.doctor.show import report_lines, write_lines
from fastfeed.errors import OptionError, StorageError

JOB = 4000


def options(*arguments):
    return make_parser().parse_args(["doctor", *arguments])


def test_json_form(recorded, capsys):
    """The object has the form that is promised, with one entry for each check."""
    assert run_doctor(recorded.machine(), options("--json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["checks", "verdict", "machine"]
    assert [check["id"] for check in document["checks"]] == list(range(1, 15))
    for check in document["checks"]:
        assert list(check) == ["id", "name", "status", "finding", "evidence", "advice"]
        assert check["status"] in {"ok", "warn", "bad", "unknown"}
    assert document["machine"]["gpus"][2]["node"] == 1
    assert document["machine"]["driver"] == "575.1"


def test_text(recorded, capsys):
    """Each check has a line, advice follows what needs it, and the verdict is last."""
    recorded.gpu(width=8)
    assert run_doctor(recorded.machine(), options()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line[:8].strip() in {"ok", "warn", "bad", "unknown"} for line in lines) == 14
    assert any(line.startswith("bad      4  PCIe link") for line in lines)
    assert lines[-1].startswith("First: fix the platform")


def test_a_terminal_gets_colours(recorded):
    """On a terminal rich writes the same words, in colour."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    write_lines(report_lines(examine(recorded.look())), stream)
    assert "\x1b[" in stream.getvalue()
    assert "GPU utilisation over time" in stream.getvalue()


def test_watch(recorded, capsys):
    """Watching tells the whole first look, later only what changed, until it is interrupted."""
    machine = recorded.machine()
    looks = []

    class Stop:
        """Interrupts the third pause between looks, which are the longest sleeps."""

        def sleep(self, seconds):
            machine_sleep(seconds)
            if seconds > 1:
                looks.append(seconds)
                recorded.files["proc/self/mountstats"] = ""
                recorded.later["proc/self/mountstats"] = ""
                if len(looks) == 3:
                    raise KeyboardInterrupt

    machine_sleep = machine.clock.sleep
    machine.clock.sleep = Stop().sleep
    assert run_doctor(machine, options("--watch", "20")) == 0
    lines = capsys.readouterr().out.splitlines()
    changes = [line for line in lines if line.startswith("+")]
    assert len(changes) == 2
    assert changes[0].startswith("+23 s")
    assert sum("13  network file system: ok -> unknown" in line for line in lines) == 1


def test_watch_as_json(recorded, capsys):
    """Watching as JSON writes one object a line."""
    machine = recorded.machine()
    pauses = []
    sleep = machine.clock.sleep

    def pause(seconds):
        sleep(seconds)
        pauses.append(seconds)
        if sum(one > 1 for one in pauses) == 2:
            raise KeyboardInterrupt

    machine.clock.sleep = pause
    assert run_doctor(machine, options("--watch", "9", "--json")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [len(json.loads(line)["checks"]) for line in lines] == [14, 14]


def test_no_such_process(recorded):
    """A process that is not there is the call's fault."""
    with pytest.raises(OptionError, match="there is no process 99"):
        run_doctor(recorded.machine(), options("--pid", "99"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["doctor", "--watch", "0"],
        ["doctor", "--watch", "nan"],
        ["doctor", "--pid", "0"],
        ["doctor", "--pid", "x"],
        ["doctor", "--surprise"],
        [],
    ],
)
def test_calls_that_are_not_right(arguments, capsys):
    """Wrong arguments end with 2 and a word."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert "usage: fastfeed" in said
    assert "invalid _" not in said


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--watch", "5", "--capture", "x"], 2, "exclude each other"),
        (["--trace", "/none/at/all"], 2, "cannot be used"),
        (["compare", "/none/a", "/none/b"], 2, "'a' cannot be compared"),
    ],
)
def test_errors_have_codes(arguments, code, text, capsys):
    """Errors are one line on stderr, and a code."""
    assert main(["doctor", *arguments]) == code
    assert text in capsys.readouterr().err


def test_capture_opens_in_a_viewer(recorded, tmp_path):
    """The bundle is a Chrome trace with the report and what was seen, the same bytes each time."""
    recorded.files[f"proc/{JOB}/numa_maps"] += " file=/secret/name"
    recorded.files["proc/self/mountstats"] += "\ndevice server:/x mounted on /data with fstype nfs4"
    seen = recorded.look()
    report = examine(seen)
    plain, packed = tmp_path / "a.json", tmp_path / "a.json.gz"
    for path in (plain, packed):
        write_capture(path, seen, report)
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert sorted(path.name for path in tmp_path.glob("a.*")) == ["a.json", "a.json.gz"]
    document = json.loads(plain.read_bytes())
    counters = [event for event in document["traceEvents"] if event["ph"] == "C"]
    names = {event["name"] for event in counters}
    assert {"cpu0 %", "GPU 3 use %", "nvme0n1 MB/s", "memory available MiB"} <= names
    assert all(isinstance(event["ts"], int) and event["pid"] in {1, 2, 3} for event in counters)
    assert max(event["ts"] for event in counters) >= 3_000_000
    assert document["otherData"]["report"] == json.loads(json.dumps(report.document()))
    assert document["otherData"]["last"]["proc/stat"].startswith("cpu ")
    text = plain.read_text()
    assert "secret" not in text
    assert "server:" not in text


def test_capture_that_cannot_be_written(recorded, tmp_path):
    """A folder that is not there is said, and nothing is left behind."""
    seen = recorded.look()
    with pytest.raises(StorageError, match=r"'x\.json' cannot be written"):
        write_capture(tmp_path / "none" / "x.json", seen, examine(seen))


def test_compare(recorded, tmp_path, capsys):
    """Two nodes that should be the same differ in link, governor, driver and mounts, by name."""
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    run_doctor(recorded.machine(), options("--json", "--capture", str(a)))
    assert main(["doctor", "compare", str(a), str(a)]) == 0
    assert "no difference" in capsys.readouterr().out
    recorded.gpu(width=8)
    recorded.gpu_facts(driver="550.9")
    for name in [name for name in recorded.files if name.endswith("scaling_governor")]:
        recorded.files[name] = "powersave"
    recorded.files["proc/self/mountstats"] += "\ndevice s:/x mounted on /data with fstype nfs4"
    run_doctor(recorded.machine(), options("--json"))
    b.write_text(capsys.readouterr().out)
    assert main(["doctor", "compare", "--json", str(a), str(b)]) == 1
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)["differences"]}
    assert found["driver"] == {"name": "driver", "a": "575.1", "b": "550.9"}
    assert found["governors"]["b"] == ["powersave"]
    assert found["gpus[0].link_now"]["b"] == "gen 5 x8"
    assert found["mounts./data"]["a"] is None
    assert found["check 9, frequency governor"]["a"].startswith("ok")
    assert not {"looked_s", "job.pid"} & set(found)
    assert main(["doctor", "--json", "compare", str(a), str(b)]) == 1
    assert "differences" in json.loads(capsys.readouterr().out)
    assert main(["doctor", "compare", str(a), str(b)]) == 1
    assert f"    {b}: 550.9" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["", "[]", "{", '{"otherData": {}}', '{"machine": 1}'])
def test_compare_what_is_no_report(tmp_path, content, capsys):
    """Files that are no reports are the call's fault."""
    path = tmp_path / "a.json"
    path.write_text(content)
    assert main(["doctor", "compare", str(path), str(path)]) == 2
    assert "'a.json' cannot be compared" in capsys.readouterr().err


def test_real_machine(leak_gauge):
    """On the machine at hand the doctor looks in time, loads no torch, and tells this process."""
    script = (
        "import sys, fastfeed.doctor.main as m; code = m.main(sys.argv[1:]); "
        "assert not {'torch', 'numpy', 'rich'} & set(sys.modules); sys.exit(code)"
    )
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script, "doctor", "--json", "--pid", str(os.getpid())],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert time.monotonic() - begin < 15
    document = json.loads(done.stdout)
    checks = {check["id"]: check for check in document["checks"]}
    assert checks[8]["evidence"]["processes looked at"] >= 1
    assert checks[6]["evidence"]["cores"] >= 1
    assert document["machine"]["job"]["pid"] == os.getpid()
    assert done.stderr == ""
