"""The verdicts, on evidence as jobs with one bottleneck leave it, with and without noise."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastfeed.diagnosis.cost import cost_of
from fastfeed.diagnosis.evidence import (
    Batch,
    Evidence,
    Feed,
    Gpu,
    Host,
    Ops,
    Times,
    Waits,
    Worker,
)
from fastfeed.diagnosis.report import Diagnosis
from fastfeed.diagnosis.verdict import judge


def times(ceiling, cached, real, wait=None, noise=0.01):
    """Times in milliseconds; the wait is what the loader adds, if nothing else is said."""
    wait = max(0.0, real - cached) if wait is None else wait
    return Times(ceiling / 1e3, cached / 1e3, real / 1e3, wait / 1e3, noise)


def worker(number, cpu=None, busy=None, queued=0.02, wait_ms=20.0, system=None):
    return Worker(
        number=number,
        cpu=cpu,
        system=cpu / 10 if system is None and cpu is not None else system,
        queued=queued if cpu is not None else None,
        busy=busy,
        wait_s=wait_ms / 1e3,
    )


def workers(count, **facts):
    return tuple(worker(number, **facts) for number in range(count))


GPU = Gpu(
    name="NVIDIA H200",
    kernels_a_step=600,
    median_us=40.0,
    gap_us=2.0,
    busy=0.97,
    sync_gaps=0.0,
    syncs_a_step=0.0,
    filled=0.95,
    copies_a_step=2,
    copied_bytes=40e6,
    copy_s=0.8e-3,
    memory_used=0.4,
)
HOST = Host(
    cores=16,
    loop_cpu=0.4,
    loop_system=0.1,
    cpu_pressure=0.02,
    io_pressure=0.0,
    memory_pressure=0.0,
    iowait=0.0,
    available=0.7,
)
HEALTHY = Evidence(
    times=times(100, 101, 102),
    waits=Waits(0.2e-3, 0.5e-3, 1e-3, 4e-3),
    feed=Feed("process", 4, workers(4, cpu=0.5, busy=0.55), bytes_per_read=1e6, read_per_s=1e8),
    host=HOST,
    batch=Batch(256, 0.05, "half the samples"),
    gpu=GPU,
    rounds=5,
    steps=400,
)


def process(count, **facts):
    return Feed("process", count, workers(count, **facts), bytes_per_read=1e6, read_per_s=2e8)


def on_host(**changes):
    """Evidence of a step that the cores compute."""
    return replace(HEALTHY, gpu=None, ops=Ops(60, 400.0), **changes)


# Job -> what it leaves, and the verdict that must come first.
SINGLE = {
    "slow storage, our loader": (
        replace(HEALTHY, times=times(50, 51, 200), feed=process(4, cpu=0.1, busy=0.97)),
        "storage-bound",
    ),
    "slow storage, torch's loader": (
        replace(HEALTHY, times=times(50, 51, 200), feed=process(4, cpu=0.12)),
        "storage-bound",
    ),
    "slow storage, no workers": (
        on_host(times=times(50, 51, 200), feed=Feed("none", 0, wait_cpu=0.06)),
        "storage-bound",
    ),
    "slow storage, threads": (
        replace(
            HEALTHY,
            times=times(50, 51, 200),
            feed=Feed("thread", 4, workers(4, busy=0.95), other_cpu=0.3),
        ),
        "storage-bound",
    ),
    "slow storage, nothing told of workers": (
        replace(
            HEALTHY,
            times=times(50, 51, 200),
            feed=Feed("process", 4),
            host=replace(HOST, io_pressure=0.9, iowait=0.6),
        ),
        "storage-bound",
    ),
    "slow decode": (
        replace(HEALTHY, times=times(50, 51, 120), feed=process(4, cpu=0.93, busy=0.98)),
        "preprocessing-bound",
    ),
    "slow decode, torch's loader": (
        replace(HEALTHY, times=times(50, 51, 120), feed=process(4, cpu=0.93)),
        "preprocessing-bound",
    ),
    "slow decode, no workers": (
        on_host(times=times(50, 51, 120), feed=Feed("none", 0, wait_cpu=0.97)),
        "preprocessing-bound",
    ),
    "slow decode, threads that release the GIL": (
        replace(
            HEALTHY,
            times=times(50, 51, 120),
            feed=Feed("thread", 4, workers(4, busy=0.98), other_cpu=3.7),
            host=replace(HOST, late=0.35, late_ceiling=0.1),
        ),
        "preprocessing-bound",
    ),
    "more workers than cores": (
        replace(
            HEALTHY,
            times=times(50, 51, 120),
            feed=process(16, cpu=0.25, busy=0.99, queued=0.7),
            host=replace(HOST, cores=4, cpu_pressure=0.95),
        ),
        "preprocessing-bound",
    ),
    "workers take the loop's core": (
        on_host(
            times=times(50, 51, 90, wait=2),
            feed=process(2, cpu=0.9, busy=0.95),
            host=replace(HOST, cores=2),
        ),
        "preprocessing-bound",
    ),
    "GIL": (
        replace(
            HEALTHY,
            times=times(50, 51, 200, wait=120),
            feed=Feed("thread", 4, workers(4, busy=0.97), other_cpu=0.95),
            host=replace(HOST, late=0.8, late_ceiling=0.02),
        ),
        "GIL",
    ),
    "GIL, threads of the user beside the loop": (
        replace(
            HEALTHY,
            times=times(50, 51, 120, wait=1),
            feed=replace(process(4, cpu=0.3, busy=0.35), other_cpu=0.7),
            host=replace(HOST, late=0.7, late_ceiling=0.1),
        ),
        "GIL",
    ),
    "GIL, worker threads draw out the loop's own steps": (
        on_host(
            times=times(2, 2, 12.5, wait=3.2),
            feed=Feed("thread", 2, workers(2, busy=0.95), other_cpu=0.8),
            host=replace(HOST, cores=2, late=0.75, late_ceiling=1.0, loop_at_work=0.2),
        ),
        "GIL",
    ),
    "many tiny kernels": (
        replace(
            HEALTHY,
            times=times(100, 101, 102),
            batch=Batch(256, 0.95, "half the samples"),
            gpu=replace(GPU, kernels_a_step=4000, median_us=3.0, gap_us=18.0, busy=0.15),
            host=replace(HOST, loop_cpu=1.0, loop_system=0.3),
        ),
        "submission-bound",
    ),
    "Python between kernels": (
        replace(
            HEALTHY,
            gpu=replace(GPU, kernels_a_step=80, median_us=60.0, gap_us=900.0, busy=0.4),
            host=replace(HOST, loop_cpu=0.95),
        ),
        "submission-bound",
    ),
    "many tiny operators on the host": (
        replace(on_host(batch=Batch(256, 0.9, "half the samples")), ops=Ops(3000, 4.0)),
        "submission-bound",
    ),
    "unpinned copies": (
        replace(
            HEALTHY,
            times=times(50, 80, 82),
            gpu=replace(GPU, copied_bytes=200e6, copy_s=28e-3, pageable=1.0),
        ),
        "transfer-bound",
    ),
    "a narrow link under a loader that copies": (
        replace(
            HEALTHY,
            times=times(50, 51, 150),
            feed=replace(process(4, cpu=0.2, busy=0.25), to_device=True),
            gpu=replace(GPU, copied_bytes=150e6, copy_s=140e-3),
        ),
        "transfer-bound",
    ),
    "heavy step": (HEALTHY, "GPU-bound"),
    "heavy step on the host": (on_host(), "GPU-bound"),
    "hidden synchronisation": (
        replace(
            HEALTHY,
            gpu=replace(
                GPU,
                busy=0.6,
                sync_gaps=0.9,
                syncs_a_step=12.0,
                sync_names=("cudaStreamSynchronize",),
            ),
            host=replace(HOST, loop_cpu=1.0),
        ),
        "hidden synchronisation",
    ),
    "too little work": (
        replace(HEALTHY, gpu=replace(GPU, busy=0.95, filled=0.2)),
        "too little work",
    ),
    "serial dependencies": (
        replace(
            HEALTHY,
            gpu=replace(GPU, busy=0.5, kernels_a_step=40, median_us=50.0, gap_us=60.0),
            host=replace(HOST, loop_cpu=0.3),
        ),
        "too little work",
    ),
    "too small batches": (
        replace(
            HEALTHY,
            batch=Batch(4, 0.9, "twice the samples"),
            gpu=replace(GPU, busy=0.3, median_us=4.0, filled=0.3),
            host=replace(HOST, loop_cpu=1.0),
        ),
        "too small batches",
    ),
    "too small batches on the host": (
        on_host(batch=Batch(2, 0.8, "twice the samples")),
        "too small batches",
    ),
    "limited by VRAM": (
        replace(
            HEALTHY,
            batch=Batch(4, 0.9, "twice the samples"),
            gpu=replace(GPU, busy=0.6, filled=0.3, memory_used=0.95),
        ),
        "limited by VRAM",
    ),
    "one slow worker, our loader": (
        replace(
            HEALTHY,
            times=times(50, 51, 150),
            feed=Feed(
                "process",
                4,
                (
                    *workers(2, cpu=0.1, busy=0.22),
                    worker(2, cpu=0.1, busy=0.99, wait_ms=300),
                    worker(3, cpu=0.1, busy=0.25),
                ),
            ),
        ),
        "one slow worker",
    ),
    "one slow worker, torch's loader": (
        replace(
            HEALTHY,
            times=times(50, 51, 150),
            feed=Feed("process", 3, (*workers(2, cpu=0.2), worker(2, cpu=0.97, wait_ms=300))),
        ),
        "one slow worker",
    ),
    "memory pressure": (
        replace(
            HEALTHY,
            times=times(50, 51, 150),
            feed=process(8, cpu=0.2, busy=0.98),
            host=replace(HOST, memory_pressure=0.6, available=0.02),
        ),
        "memory pressure",
    ),
    "files thrown out of memory": (
        replace(
            HEALTHY,
            times=times(50, 51, 150),
            feed=process(8, cpu=0.1, busy=0.98),
            host=replace(HOST, read_again=0.95, read_again_per_s=80e6, held=0.4),
        ),
        "memory pressure",
    ),
    "files thrown out of memory, beside others' work": (
        # As measured: the system's work on pages and the wake-ups are what the workers do.
        replace(
            HEALTHY,
            times=times(2.4, 2.4, 23.6, wait=21.1),
            feed=process(2, cpu=0.3, system=0.25, queued=0.35, busy=1.0),
            host=replace(HOST, read_again=1.0, read_again_per_s=90e6, held=0.34, cores=2),
            gpu=None,
        ),
        "memory pressure",
    ),
    "the system copies what workers read": (
        # A few files are thrown out beside it: far fewer pages than would take the system so long.
        replace(
            HEALTHY,
            times=times(50, 51, 150),
            feed=process(2, cpu=0.9, system=0.8, busy=0.95),
            host=replace(HOST, read_again=0.9, read_again_per_s=6e6, major_faults_per_s=50.0),
        ),
        "preprocessing-bound",
    ),
    "a little is read again": (
        replace(
            HEALTHY,
            times=times(50, 51, 150),
            feed=process(8, cpu=0.1, busy=0.98),
            host=replace(HOST, read_again=0.3, read_again_per_s=80e6),
        ),
        "storage-bound",
    ),
    "swapping": (
        replace(
            HEALTHY,
            times=times(50, 51, 150),
            feed=process(8, cpu=0.2, busy=0.98),
            host=replace(HOST, memory_pressure=None, swapped_per_s=4000.0),
        ),
        "memory pressure",
    ),
}

# Job -> what it leaves, and its verdicts in order.
MIXED = {
    "storage, then decode": (
        replace(HEALTHY, times=times(50, 51, 200), feed=process(4, cpu=0.3, busy=0.99)),
        ["storage-bound", "preprocessing-bound"],
    ),
    "decode, then storage": (
        replace(HEALTHY, times=times(50, 51, 200), feed=process(4, cpu=0.7, busy=0.99)),
        ["preprocessing-bound", "storage-bound"],
    ),
    "tiny kernels, then storage": (
        replace(
            HEALTHY,
            times=times(100, 101, 130),
            feed=process(4, cpu=0.05, busy=0.95),
            gpu=replace(GPU, kernels_a_step=4000, median_us=3.0, busy=0.3),
            host=replace(HOST, loop_cpu=1.0),
        ),
        ["submission-bound", "storage-bound"],
    ),
    "decode, then copies": (
        replace(
            HEALTHY,
            times=times(50, 80, 200),
            feed=process(4, cpu=0.95, busy=0.99),
            gpu=replace(GPU, copied_bytes=200e6, copy_s=28e-3, pageable=1.0),
        ),
        ["preprocessing-bound", "transfer-bound"],
    ),
    "synchronisation, then launches": (
        replace(
            HEALTHY,
            gpu=replace(GPU, kernels_a_step=900, median_us=5.0, busy=0.4, sync_gaps=0.7),
        ),
        ["hidden synchronisation", "submission-bound"],
    ),
    "memory pressure, then storage": (
        replace(
            HEALTHY,
            times=times(50, 51, 250),
            feed=process(4, cpu=0.1, busy=0.99),
            host=replace(HOST, memory_pressure=0.5),
        ),
        ["memory pressure", "storage-bound"],
    ),
}


def verdict_names(evidence):
    return [one.name for one in judge(evidence)]


def jittered(value, rate):
    """Return evidence in which every measured figure is another by up to some per cent."""
    if is_dataclass(value):
        counted = {"samples", "count", "number", "rounds", "steps", "cores"}
        return replace(
            value,
            **{
                one.name: jittered(getattr(value, one.name), rate)
                for one in fields(value)
                if one.name not in counted
            },
        )
    if isinstance(value, float):
        return value * rate()
    if isinstance(value, tuple):
        return tuple(jittered(one, rate) for one in value)
    return value


@pytest.mark.parametrize(("evidence", "name"), SINGLE.values(), ids=SINGLE)
def test_single_bottlenecks(evidence, name):
    """Each job gets the verdict that it was built for, with sentences and advice."""
    first = judge(evidence)[0]
    assert first.name == name
    assert first.why
    assert first.advice
    assert all(sentence.endswith((".", ":")) for sentence in (*first.why, *first.advice))


@pytest.mark.parametrize("job", SINGLE)
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_single_bottlenecks_with_noise(job, data):
    """Figures that are off by some per cent, each its own, change no first verdict."""
    evidence, name = SINGLE[job]
    rates = st.floats(0.96, 1.04)
    noisy = jittered(evidence, lambda: data.draw(rates))
    assert verdict_names(noisy)[0] == name


@pytest.mark.parametrize(("evidence", "names"), MIXED.values(), ids=MIXED)
def test_mixed_bottlenecks(evidence, names):
    """Of two bottlenecks both are told, the larger first, with the larger share."""
    found = judge(evidence)
    assert [one.name for one in found] == names
    shares = [one.share_of_time_lost for one in found]
    assert shares == sorted(shares, reverse=True)


def positive(least=0.0, most=1.0):
    return st.floats(least, most, allow_nan=False)


@given(
    ceiling=positive(1e-3, 1e3),
    cached=positive(1e-3, 1e3),
    real=positive(1e-3, 1e3),
    wait=positive(0, 1e3),
    noise=positive(),
    kind=st.sampled_from(["none", "process", "thread"]),
    cpu=st.none() | positive(0, 2),
    busy=st.none() | positive(),
    late=positive(),
    pressure=st.none() | positive(),
    on_gpu=st.booleans(),
    part=positive(),
)
def test_any_evidence_has_a_verdict(**drawn):
    """Whatever was measured, the shares are parts of the time, and no more than all is lost."""
    count = 0 if drawn["kind"] == "none" else 3
    gpu = replace(GPU, busy=drawn["part"], sync_gaps=drawn["noise"], filled=drawn["late"])
    evidence = replace(
        HEALTHY,
        times=times(
            drawn["ceiling"], drawn["cached"], drawn["real"], drawn["wait"], drawn["noise"]
        ),
        feed=Feed(
            drawn["kind"],
            count,
            workers(count, cpu=drawn["cpu"], busy=drawn["busy"]),
            drawn["part"],
        ),
        host=replace(HOST, late=drawn["late"], memory_pressure=drawn["pressure"]),
        batch=Batch(32, drawn["part"], "half the samples"),
        gpu=gpu if drawn["on_gpu"] else None,
    )
    found = judge(evidence)
    assert found
    assert all(0 <= one.share_of_time_lost <= 1 + 1e-9 for one in found)
    assert all(one.expected_gain >= 0 for one in found)
    assert str(Diagnosis(evidence, found, cost_of(evidence, 3.0)))


def test_noise_hides_small_losses():
    """What the rounds differ by cannot be told from a loss, and that is said."""
    noisy = replace(on_host(), times=times(100, 101, 115, noise=0.25))
    (verdict,) = judge(noisy)
    assert verdict.name == "GPU-bound"
    assert "differ by 25%" in " ".join(verdict.why)
    assert "no loss can be told" in str(Diagnosis(noisy, (verdict,)))


@pytest.mark.parametrize(
    ("dram", "tensor", "words"),
    [
        (0.8, 0.1, "memory-bound inside"),
        (0.3, 0.75, "compute-bound inside"),
        (0.3, 0.2, "neither is at its limit"),
        (None, None, ""),
    ],
)
def test_inside_of_a_busy_gpu(dram, tensor, words):
    """Memory-bound or compute-bound is claimed only where counters say so."""
    (verdict,) = judge(replace(HEALTHY, gpu=replace(GPU, dram=dram, tensor=tensor)))
    text = " ".join(verdict.why)
    assert words in text
    assert ("inside" in text) == words.endswith("inside")


def test_one_more_worker_beside_a_step_of_the_host():
    """Of two cores one is free while the loop waits, though it computes when it has a batch."""
    slow = on_host(
        times=times(2, 2, 66, wait=63),
        feed=process(1, cpu=0.97, busy=0.98),
        host=replace(HOST, cores=2, loop_cpu=1.0),
    )
    assert "num_workers=2" in judge(slow)[0].advice[0]


def test_more_workers_only_where_cores_are_free():
    """More workers are advised for as many cores as are free; else less work for a sample."""
    slow = replace(HEALTHY, times=times(50, 51, 120), feed=process(4, cpu=0.93, busy=0.98))
    (verdict,) = judge(slow)
    assert "num_workers=10" in verdict.advice[0]
    (verdict,) = judge(replace(slow, host=replace(HOST, cores=4)))
    assert "Do less for a sample" in verdict.advice[0]
    (verdict,) = judge(replace(slow, host=replace(HOST, cores=4, throttled=0.4)))
    assert "CPU limit" in verdict.advice[0]


def test_advice_of_storage_follows_the_size_of_reads():
    """Small reads are to become large ones, large ones come from nearer; others wait together."""
    slow = replace(HEALTHY, times=times(50, 51, 200), feed=process(4, cpu=0.1, busy=0.97))
    assert "near" in judge(slow)[0].advice[0]
    small = replace(slow, feed=replace(slow.feed, bytes_per_read=9000.0))
    assert "larger pieces" in judge(small)[0].advice[0]
    assert "9 KiB a call" in " ".join(judge(small)[0].why)
    shards = replace(small, feed=replace(small.feed, shards=True))
    assert "near" in judge(shards)[0].advice[0]
    unseen = replace(slow, feed=replace(slow.feed, read_per_s=0.0))
    assert "num_workers=ff.AUTO" in judge(unseen)[0].advice[0]
    many = replace(unseen, feed=replace(process(16, cpu=0.1, busy=0.97), read_per_s=0.0))
    assert "near" in judge(many)[0].advice[0]
    none = on_host(times=times(50, 51, 200), feed=Feed("none", 0, wait_cpu=0.06))
    assert "Use worker processes" in judge(none)[0].advice[0]


def test_advice_of_memory_follows_what_the_loader_holds():
    """A loader that hardly takes memory is not told to take less of it first."""
    first = {}
    for held in (None, 0.001, 0.4):
        host = replace(HOST, memory_pressure=0.5, held=held)
        first[held] = judge(replace(HEALTHY, times=times(50, 51, 150), host=host))[0].advice[0]
    assert "prefetch_factor" in first[None]
    assert "prefetch_factor" in first[0.4]
    assert "more memory" in first[0.001]


def test_dear_decoding_may_be_kept():
    """A cache of decoded samples is advised where decoding takes most of the workers' time."""
    feed = process(4, cpu=0.93, busy=0.98)
    advised = []
    for decoding in (0.4, 0.9):
        steps = (("decode", decoding), ("read", 1 - decoding))
        slow = replace(HEALTHY, times=times(50, 51, 120), feed=replace(feed, steps=steps))
        advised.append(any("DecodedCache" in one for one in judge(slow)[0].advice))
    assert advised == [False, True]


def test_cost():
    """The price of an hour becomes that of a million samples, and of the waiting in it."""
    evidence = replace(HEALTHY, times=times(50, 51, 200), batch=Batch(100))
    cost = cost_of(evidence, 3.6)
    assert cost.per_million_samples == pytest.approx(0.001 * 0.2 / 100 * 1e6)
    assert cost.per_million_samples_at_ceiling == pytest.approx(cost.per_million_samples / 4)
    assert cost.waiting_per_hour == pytest.approx(3.6 * 0.75)


def test_document_is_complete_and_stable():
    """The JSON holds what the text says, under names that stay."""
    evidence, name = SINGLE["slow storage, our loader"]
    diagnosis = Diagnosis(evidence, judge(evidence), cost_of(evidence, 2.0))
    document = json.loads(json.dumps(diagnosis.document()))
    assert set(document) == {"verdict", "au", "samples_per_s", "verdicts", "cost", "evidence"}
    assert document["verdict"] == name
    assert document["au"] == pytest.approx(0.25)
    assert set(document["verdicts"][0]) == {
        "name",
        "share_of_time_lost",
        "why",
        "advice",
        "expected_gain",
    }
    assert document["evidence"]["feed"]["workers"][3]["busy"] == 0.97
    assert document["cost"]["price_per_hour"] == 2.0


def test_text_names_figures_and_first_advice():
    """The text begins with the verdict and holds AU, percentiles, money and what was not seen."""
    evidence, _ = SINGLE["slow storage, our loader"]
    evidence = replace(evidence, unseen=("pressure: not there",), restarts_s=3.0)
    text = str(Diagnosis(evidence, judge(evidence), cost_of(evidence, 2.0)))
    assert text.startswith("storage-bound: 74% of the time is lost to it")
    for words in (
        "AU 25%",
        "p99 1 ms",
        "an hour pay for waiting",
        "-> ",
        "Not seen: pressure: not there.",
        "persistent_workers",
    ):
        assert words in text
