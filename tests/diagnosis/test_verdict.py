"""The verdicts, on evidence as jobs with one bottleneck leave it, with and without noise."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recorded_jobs as jobs
from fastfeed.diagnosis.cost import cost_of
from fastfeed.diagnosis.evidence import Batch, Feed
from fastfeed.diagnosis.report import Diagnosis
from fastfeed.diagnosis.verdict import judge


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


@pytest.mark.parametrize(("evidence", "name"), jobs.SINGLE.values(), ids=jobs.SINGLE)
def test_single_bottlenecks(evidence, name):
    """Each job gets the verdict that it was built for, with sentences and advice."""
    first = judge(evidence)[0]
    assert first.name == name
    assert first.why
    assert first.advice
    assert all(sentence.endswith((".", ":")) for sentence in (*first.why, *first.advice))


@pytest.mark.parametrize("job", jobs.SINGLE)
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_single_bottlenecks_with_noise(job, data):
    """Figures that are off by some per cent, each its own, change no first verdict."""
    evidence, name = jobs.SINGLE[job]
    rates = st.floats(0.96, 1.04)
    noisy = jittered(evidence, lambda: data.draw(rates))
    assert verdict_names(noisy)[0] == name


@pytest.mark.parametrize(("evidence", "names"), jobs.MIXED.values(), ids=jobs.MIXED)
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
    gpu = replace(jobs.GPU, busy=drawn["part"], sync_gaps=drawn["noise"], filled=drawn["late"])
    evidence = replace(
        jobs.HEALTHY,
        times=jobs.times(
            drawn["ceiling"], drawn["cached"], drawn["real"], drawn["wait"], drawn["noise"]
        ),
        feed=Feed(
            drawn["kind"],
            count,
            jobs.workers(count, cpu=drawn["cpu"], busy=drawn["busy"]),
            drawn["part"],
        ),
        host=replace(jobs.HOST, late=drawn["late"], memory_pressure=drawn["pressure"]),
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
    noisy = replace(jobs.on_host(), times=jobs.times(100, 101, 115, noise=0.25))
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
    (verdict,) = judge(replace(jobs.HEALTHY, gpu=replace(jobs.GPU, dram=dram, tensor=tensor)))
    text = " ".join(verdict.why)
    assert words in text
    assert ("inside" in text) == words.endswith("inside")


def test_one_more_worker_beside_a_step_of_the_host():
    """Of two cores one is free while the loop waits, though it computes when it has a batch."""
    slow = jobs.on_host(
        times=jobs.times(2, 2, 66, wait=63),
        feed=jobs.process(1, cpu=0.97, busy=0.98),
        host=replace(jobs.HOST, cores=2, loop_cpu=1.0),
    )
    assert "num_workers=2" in judge(slow)[0].advice[0]


def test_more_workers_only_where_cores_are_free():
    """More workers are advised for as many cores as are free; else less work for a sample."""
    slow = replace(
        jobs.HEALTHY, times=jobs.times(50, 51, 120), feed=jobs.process(4, cpu=0.93, busy=0.98)
    )
    (verdict,) = judge(slow)
    assert "num_workers=10" in verdict.advice[0]
    (verdict,) = judge(replace(slow, host=replace(jobs.HOST, cores=4)))
    assert "Do less for a sample" in verdict.advice[0]
    (verdict,) = judge(replace(slow, host=replace(jobs.HOST, cores=4, throttled=0.4)))
    assert "CPU limit" in verdict.advice[0]


def test_advice_of_storage_follows_the_size_of_reads():
    """Small reads are to become large ones, large ones come from nearer; others wait together."""
    slow = replace(
        jobs.HEALTHY, times=jobs.times(50, 51, 200), feed=jobs.process(4, cpu=0.1, busy=0.97)
    )
    assert "near" in judge(slow)[0].advice[0]
    small = replace(slow, feed=replace(slow.feed, bytes_per_read=9000.0))
    assert "larger pieces" in judge(small)[0].advice[0]
    assert "9 KiB a call" in " ".join(judge(small)[0].why)
    shards = replace(small, feed=replace(small.feed, shards=True))
    assert "near" in judge(shards)[0].advice[0]
    unseen = replace(slow, feed=replace(slow.feed, read_per_s=0.0))
    assert "num_workers=ff.AUTO" in judge(unseen)[0].advice[0]
    busy = replace(jobs.HOST, io_pressure=0.5)
    many = replace(jobs.process(16, cpu=0.1, busy=0.97), read_per_s=0.0)
    assert "near" in judge(replace(unseen, feed=many, host=busy))[0].advice[0]
    none = jobs.on_host(times=jobs.times(50, 51, 200), feed=Feed("none", 0, wait_cpu=0.06))
    assert "Use worker processes" in judge(none)[0].advice[0]


def test_advice_to_code_that_waits():
    """More may wait together, as many as ever help; for one lock nobody is to queue longer."""
    waits = replace(
        jobs.process(4, cpu=0.1), waits_in=(("sleep", 1.0),), code="Rows.__getitem__ (a:1)"
    )
    slow = replace(jobs.HEALTHY, times=jobs.times(10, 10, 400), feed=waits)
    (verdict,) = judge(slow)
    assert "num_workers=ff.AUTO" in verdict.advice[0]
    assert verdict.expected_gain == pytest.approx(3.0)
    assert "Rows.__getitem__ (a:1)" in " ".join(verdict.why)
    assert "sleep 100%" in " ".join(verdict.why)
    none = replace(slow, feed=Feed("none", 0, wait_cpu=0.02, waits_in=(("sleep", 1.0),)))
    assert "Use worker processes" in judge(none)[0].advice[0]
    many = replace(slow, feed=replace(waits, count=16))
    assert "Look at Rows.__getitem__" in judge(many)[0].advice[0]
    locks = (("sleep", 0.5), ("locks and other threads", 0.5))
    locked = replace(slow, feed=replace(waits, waits_in=locks))
    assert "one lock" in judge(locked)[0].advice[0]


@pytest.mark.parametrize(
    "feed",
    [
        replace(jobs.process(2, cpu=0.1), waits_in=(("sleep", 1.0),)),
        jobs.process(2, cpu=0.1, busy=0.97),
        replace(jobs.process(2, cpu=0.1, busy=0.97), bytes_per_read=9000.0),
        replace(jobs.process(2, cpu=0.1, busy=0.97), bytes_per_read=None),
        jobs.process(2, cpu=0.97, busy=0.97),
    ],
)
def test_what_is_tuned_is_not_to_be_tuned(feed):
    """Who has ff.AUTO is told something else first."""
    slow = replace(jobs.HEALTHY, times=jobs.times(50, 51, 200), feed=feed)
    assert "ff.AUTO" in " ".join(judge(slow)[0].advice)
    tuned = judge(replace(slow, feed=replace(feed, tuned=True)))[0]
    assert "AUTO" not in tuned.advice[0]
    assert "num_workers" not in " ".join(tuned.advice)


def test_advice_of_memory_follows_what_the_loader_holds():
    """A loader that hardly takes memory is not told to take less of it first."""
    first = {}
    for held in (None, 0.001, 0.4):
        host = replace(jobs.HOST, memory_pressure=0.5, held=held)
        slow = replace(
            jobs.HEALTHY, times=jobs.times(50, 51, 150), host=host, feed=jobs.process(8, cpu=0.2)
        )
        first[held] = judge(slow)[0].advice[0]
    assert "prefetch_factor" in first[None]
    assert "prefetch_factor" in first[0.4]
    assert "more memory" in first[0.001]


def test_dear_decoding_may_be_kept():
    """A cache of decoded samples is advised where decoding takes most of the workers' time."""
    feed = jobs.process(4, cpu=0.93, busy=0.98)
    advised = []
    for decoding in (0.4, 0.9):
        steps = (("decode", decoding), ("read", 1 - decoding))
        slow = replace(jobs.HEALTHY, times=jobs.times(50, 51, 120), feed=replace(feed, steps=steps))
        advised.append(any("DecodedCache" in one for one in judge(slow)[0].advice))
    assert advised == [False, True]


def test_cost():
    """The price of an hour becomes that of a million samples, and of the waiting in it."""
    evidence = replace(jobs.HEALTHY, times=jobs.times(50, 51, 200), batch=Batch(100))
    cost = cost_of(evidence, 3.6)
    assert cost.per_million_samples == pytest.approx(0.001 * 0.2 / 100 * 1e6)
    assert cost.per_million_samples_at_ceiling == pytest.approx(cost.per_million_samples / 4)
    assert cost.waiting_per_hour == pytest.approx(3.6 * 0.75)


def test_document_is_complete_and_stable():
    """The JSON holds what the text says, under names that stay."""
    evidence, name = jobs.SINGLE["slow storage, our loader"]
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
    evidence, _ = jobs.SINGLE["slow storage, our loader"]
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
