"""What jobs with one bottleneck or two leave, as figures: evidence for the verdicts."""

from __future__ import annotations

from dataclasses import replace

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
    "slow storage, seen in reads of files": (
        replace(
            HEALTHY,
            times=times(50, 51, 200),
            feed=replace(process(4, cpu=0.1), read_per_s=9e3, waits_in=(("files", 0.97),)),
        ),
        "storage-bound",
    ),
    "slow storage, a server that the user's code asks": (
        replace(
            HEALTHY,
            times=times(50, 51, 200),
            feed=replace(
                process(4, cpu=0.1),
                read_per_s=9e3,
                received_per_s=4e6,
                waits_in=(("pipes and sockets", 0.9), ("locks and other threads", 0.1)),
            ),
        ),
        "storage-bound",
    ),
    "slow storage, shards": (
        replace(
            HEALTHY,
            times=times(50, 51, 200),
            feed=replace(process(4, cpu=0.1), reading=0.85, waits_in=(("pipes and sockets", 1.0),)),
        ),
        "storage-bound",
    ),
    "a data set that sleeps": (
        replace(
            HEALTHY,
            times=times(50, 51, 200),
            # What it reads beside comes from memory.
            feed=replace(process(4, cpu=0.1, busy=0.97), waits_in=(("sleep", 0.98),)),
        ),
        "waiting in user code",
    ),
    "a data set that asks a server for a word": (
        replace(
            HEALTHY,
            times=times(50, 51, 200),
            feed=replace(
                process(4, cpu=0.1),
                read_per_s=9e3,
                received_per_s=2e4,
                waits_in=(("pipes and sockets", 1.0),),
            ),
        ),
        "waiting in user code",
    ),
    "a data set that waits, no workers, nothing seen": (
        on_host(times=times(50, 51, 200), feed=Feed("none", 0, wait_cpu=0.06, read_per_s=100.0)),
        "waiting in user code",
    ),
    "a transform that waits": (
        replace(
            HEALTHY,
            times=times(50, 51, 200),
            feed=replace(process(4, cpu=0.1, busy=0.97), reading=0.02, shards=True),
        ),
        "waiting in user code",
    ),
    "a transform that waits, beside reads that decode frames": (
        replace(
            HEALTHY,
            times=times(50, 51, 200),
            feed=replace(
                process(4, cpu=0.32, busy=0.97),
                reading=0.34,
                shards=True,
                waits_in=(("sleep", 1.0),),
            ),
        ),
        "waiting in user code",
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
    "slow decode, while others lack memory": (
        replace(
            HEALTHY,
            times=times(50, 51, 120),
            feed=process(4, cpu=0.93, busy=0.98, system=0.03),
            host=replace(HOST, memory_pressure=0.7, read_again=0.9, read_again_per_s=9e7),
        ),
        "preprocessing-bound",
    ),
    "a data set that sleeps, while others lack memory": (
        replace(
            HEALTHY,
            times=times(50, 51, 200),
            feed=replace(process(4, cpu=0.05, busy=0.97), waits_in=(("sleep", 1.0),)),
            host=replace(HOST, memory_pressure=0.7, read_again=0.9, read_again_per_s=9e7),
        ),
        "waiting in user code",
    ),
    "garbage collection": (
        replace(HEALTHY, host=replace(HOST, collecting=0.4, longest_collection_s=0.3)),
        "garbage collection",
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
    "user code that waits, then storage": (
        replace(
            HEALTHY,
            times=times(50, 51, 250),
            feed=replace(process(4, cpu=0.05), waits_in=(("sleep", 0.6), ("files", 0.4))),
        ),
        ["waiting in user code", "storage-bound"],
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
