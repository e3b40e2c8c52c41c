"""Nothing but the inputs decides a bit (rules O7, O8): threads, place, floating-point environment, forks, torch."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest

import environments
import samestep
import suite

FIRST = ["in_a_fork_without_a_step_before"]  # in a process of its own
NAMES = [
    "plain", "reference", "one_thread", "two_threads", "three_threads", "eight_threads", "upward_rounding",
    "upward_rounding_reference", "flushing", "flushing_reference", "in_a_fork", "from_many_threads",
]


@pytest.fixture(scope="module", params=["torch", "no-torch"])
def digests(request):
    found = {}
    for names in (FIRST, NAMES):
        command = [sys.executable, "-W", "ignore::DeprecationWarning", environments.__file__, request.param, *names]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        found.update(json.loads(done.stdout))
    return found


@pytest.mark.parametrize("name", FIRST + NAMES)
def test_circumstances_change_no_bit(name, digests):
    assert digests[name] == environments.digest("reference")


PROCESSORS = {"x86_64": {"generic": "+sse2", "haswell": "+avx2,+fma,+f16c"}, "aarch64": {"generic": "+neon"}}
KERNELS_OF_A_PROCESSOR = """
import suite
print(sum(suite.check("cpu", *kernel, length=60)[0] for kernel in suite.KERNELS))
print(sum(suite.every_float16()))
"""


@pytest.mark.parametrize("processor", PROCESSORS[platform.machine()])
def test_kernels_for_other_processors_compute_the_same(processor, tmp_path):
    # The plainest processor has no conversion of float16 in hardware.
    environment = {**os.environ, "NUMBA_CPU_NAME": processor, "SAMESTEP_CACHE_DIR": str(tmp_path),
                   "NUMBA_CPU_FEATURES": PROCESSORS[platform.machine()][processor],
                   "PYTHONPATH": os.path.dirname(suite.__file__)}
    done = subprocess.run([sys.executable, "-c", KERNELS_OF_A_PROCESSOR], env=environment, capture_output=True,
                          text=True, timeout=300, check=False)
    assert done.stdout.split() == ["0", "0"], done.stderr


@pytest.mark.parametrize("dtype", suite.NUMPY)
def test_an_element_keeps_its_bits_at_any_place(dtype):
    rng = np.random.default_rng(7)
    lr, m = suite.scalar(0.1, dtype), suite.scalar(0.9, dtype)
    few = suite.tensors(rng, 7, dtype)
    alone = suite.run("cpu", few, dtype, suite.KEYS[3], "spec", lr, m)
    long = suite.tensors(rng, 70_001, dtype)
    for place in (0, 1, 2, 31, 32_767, 35_000, 69_990, 69_994):
        columns = [column.copy() for column in long]
        for column, values in zip(columns, few, strict=True):
            column[place:place + 7] = values
        after = suite.run("cpu", columns, dtype, suite.KEYS[3], "spec", lr, m)
        assert suite.differing(alone, [column[place:place + 7] for column in after], dtype, masked=False) == 0


def test_torch_set_flush_denormal_changes_nothing():
    torch = pytest.importorskip("torch", reason="this is about torch's switch")
    expected = environments.digest("reference")
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        assert float(torch.tensor(1e-40) * 1) == 0.0
        assert environments.digest("cpu") == environments.digest("reference") == expected
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_gil_is_released(threads):
    length = 1 << 24
    columns = [np.ones(length, np.float32) for _ in range(4)]
    samestep.set_num_threads(threads)
    began, done = threading.Event(), threading.Event()

    def work():
        began.set()
        for _ in range(20):  # long enough for the other thread to get a processor on a busy machine
            samestep.sgd_(columns[0], columns[1], 0.1, columns[2], 0.9, columns[3])
        done.set()

    samestep.sgd_(columns[0], columns[1], 0.1, columns[2], 0.9, columns[3])  # compile first
    switches = sys.getswitchinterval()
    sys.setswitchinterval(60)  # no thread gives the GIL away unless it releases it
    try:
        worker = threading.Thread(target=work)
        worker.start()
        began.wait()
        ticks = 0
        while not done.is_set():
            ticks += 1
            time.sleep(0)
        worker.join()
    finally:
        sys.setswitchinterval(switches)
        samestep.set_num_threads(None)
    assert ticks > 10


def test_a_dataloader_with_fork_workers_works_after_a_step():
    torch = pytest.importorskip("torch", reason="this is about torch's DataLoader")
    environments.digest()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of fork beside threads, which is the point here
        loader = torch.utils.data.DataLoader(StepsInWorkers(), num_workers=2, timeout=60,
                                             multiprocessing_context="fork")
        digests = [batch[0] for batch in loader]
    assert digests == [environments.digest()] * 4


class StepsInWorkers:
    """A data set whose items are computed by updates in the worker."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return environments.digest()


def test_threads_after_the_interpreter_began_to_shut_down():
    script = (
        "import atexit, numpy as np, samestep\n"
        "x = [np.ones(1 << 20, np.float32) for _ in range(4)]\n"
        "samestep.set_num_threads(2)\n"
        "samestep.sgd_(x[0], x[1], 0.1, x[2], 0.9, x[3])\n"
        "atexit.register(lambda: print(samestep.sgd_(x[0], x[1], 0.1, x[2], 0.9, x[3])[-1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    x = [np.ones(4, np.float32) for _ in range(4)]
    for _ in range(2):
        samestep.sgd_(x[0], x[1], 0.1, x[2], 0.9, x[3])
    assert done.stdout.strip() == str(x[0][0])


def test_number_of_threads():
    assert samestep.get_num_threads() >= 1
    samestep.set_num_threads(3)
    assert samestep.get_num_threads() == 3
    samestep.set_num_threads(None)
    for bad in (0, -1, 1.5, True, "2"):
        with pytest.raises(ValueError, match="whole number"):
            samestep.set_num_threads(bad)
    script = "import samestep; print(samestep.get_num_threads())"
    environment = {**os.environ, "SAMESTEP_NUM_THREADS": "5"}
    out = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "5"


def test_an_interrupt_waits_for_the_threads_that_still_write():
    from samestep.engine import threads as pool

    finished = []

    def part(k):
        if k == 0:
            raise KeyboardInterrupt
        time.sleep(0.2)
        finished.append(k)

    with pytest.raises(KeyboardInterrupt):
        pool.run_on_pool(part, 3)
    assert sorted(finished) == [1, 2]
