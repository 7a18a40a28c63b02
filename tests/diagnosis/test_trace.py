"""Kernels, gaps, waits, copies and operators, counted in events as torch.profiler writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.diagnosis.trace import copy_trace, kernel_trace, operators


def event(cat, begin, length, name="one", tid=1, **arguments):
    return {"cat": cat, "ts": begin, "dur": length, "name": name, "tid": tid, "args": arguments}


def kernel(begin, length, blocks=2.0):
    return event("kernel", begin, length, **{"blocks per SM": blocks})


def test_gaps_after_a_wait_are_the_waits():
    """A gap belongs to a wait of the host that ended with the work before; others do not."""
    events = [
        kernel(0, 100),
        event("cuda_runtime", 20, 82, "cudaStreamSynchronize"),
        kernel(150, 50),  # 50 us after the wait
        event("cuda_runtime", 160, 5, "cudaLaunchKernel"),
        kernel(350, 50),  # 150 us late, nobody waited
        event("cuda_runtime", 300, 200, "cudaDeviceSynchronize"),  # of whoever took the trace
    ]
    found = kernel_trace(events)
    assert found.kernels == 3
    assert found.busy_us == 200
    assert found.sync_gaps == pytest.approx(50 / 200)
    assert found.syncs == 1
    assert found.sync_names == ("cudaStreamSynchronize",)
    assert found.median_us == 50


def test_kernels_side_by_side_count_once():
    """Streams that overlap keep the device busy no longer than it is; copies fill gaps."""
    events = [kernel(0, 100), kernel(50, 100), event("gpu_memcpy", 150, 50), kernel(200, 10)]
    found = kernel_trace(events)
    assert found.busy_us == 160
    assert found.sync_gaps == 0.0


def test_filled_is_weighed_by_time():
    """Kernels with fewer blocks than processors fill their part for as long as they run."""
    assert kernel_trace([kernel(0, 30, 0.1), kernel(50, 10, 8.0)]).filled == pytest.approx(0.325)
    assert kernel_trace([event("kernel", 0, 5)]).filled == 1.0


def test_copies():
    """Copies to the device are counted by bytes, those from pageable memory apart."""
    events = [
        event("gpu_memcpy", 0, 10, "Memcpy HtoD (Pageable -> Device)", bytes=300),
        event("gpu_memcpy", 20, 10, "Memcpy HtoD (Pinned -> Device)", bytes=100),
        event("gpu_memcpy", 40, 10, "Memcpy DtoH (Device -> Pageable)", bytes=999),
    ]
    found = copy_trace(events)
    assert (found.copies, found.nbytes, found.busy_us) == (2, 400, 20)
    assert found.pageable == 0.75


def test_only_innermost_operators_count():
    """Operators that call others are left out, on each thread by itself."""
    events = [
        event("cpu_op", 0, 100, "aten::linear"),
        event("cpu_op", 10, 20, "aten::t"),
        event("cpu_op", 40, 50, "aten::addmm"),
        event("cpu_op", 0, 7, "aten::add", tid=2),
        event("user_annotation", 0, 500),
    ]
    assert operators(events) == (3, 20)
    assert operators([]) == (0, 0.0)


ANYTHING = st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text(max_size=8))


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "cat": st.sampled_from(["kernel", "gpu_memcpy", "cuda_runtime", "cpu_op", "x"]),
                "ts": st.floats(0, 1e9) | ANYTHING,
                "dur": st.floats(0, 1e6) | ANYTHING,
                "name": st.sampled_from(["cudaDeviceSynchronize", "Memcpy HtoD"]) | ANYTHING,
                "args": st.dictionaries(st.sampled_from(["bytes", "blocks per SM"]), ANYTHING)
                | ANYTHING,
            }
        ),
        max_size=30,
    )
)
def test_odd_events_are_no_error(events):
    """Whatever stands in a trace, parts are parts and nothing raises."""
    found = kernel_trace(events)
    assert 0 <= found.sync_gaps <= 1 + 1e-9
    assert 0 <= found.filled <= 1
    assert found.busy_us >= 0
    assert 0 <= copy_trace(events).pageable <= 1 + 1e-9
    assert operators(events)[0] >= 0
