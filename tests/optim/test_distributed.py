"""The optimizer in groups of processes: DDP, ZeRO, both FSDPs, tensor parallelism, distributed checkpoints.

The scenarios are functions of distributed_worker.py. Processes take longer to start than scenarios take to run: one
group of each size runs all of them, and the tests look at what it reports.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

if not pytest.importorskip("torch.distributed").is_available():
    pytest.skip("this torch is built without distributed", allow_module_level=True)

WORKER = Path(__file__).with_name("distributed_worker.py")
TIMEOUT = 100  # seconds for one group; on two idle cores it takes 10
SCENARIOS = [
    "ddp",
    "zero",
    "fsdp1_flat_params",
    "fsdp1_original_params",
    "fsdp2_distributed_checkpoint",
    "fsdp2_flattened_checkpoint",
    "fsdp2_full_checkpoint",
    "fsdp2_plain_checkpoint",
    "tensor_parallel",
    "tensor_parallel_and_fsdp2",
    "placements_that_differ",
    "functional",
    "gradient_scaling",
    "no_communication",
    "step_between_forward_and_backward",
    "dialect_cann",
    "parts_of_other_shapes",
    "state_that_does_not_fit",
]


def run(folder, size, scenarios):
    """What each process of a group reports by scenario, and all that went to stderr."""
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": loopback}
    outputs = [(folder / f"out-{size}-{rank}-{scenarios[0]}", folder / f"err-{size}-{rank}-{scenarios[0]}")
               for rank in range(size)]
    processes = []
    try:
        for rank, (out, err) in enumerate(outputs):
            with out.open("w") as out_file, err.open("w") as err_file:
                processes.append(subprocess.Popen(  # torch deprecates its own calls, hence the -W
                    [sys.executable, "-W", "ignore", str(WORKER), str(folder), str(rank), str(size), *scenarios],
                    stdin=subprocess.DEVNULL, stdout=out_file, stderr=err_file, env=environment))
        end = time.monotonic() + TIMEOUT
        while time.monotonic() < end and any(process.poll() is None for process in processes):
            if any(process.returncode for process in processes):
                end = min(end, time.monotonic() + 5)  # the others wait for it in vain
            time.sleep(0.05)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    whole_lines = [out.read_text().rpartition("\n")[0].splitlines() for out, _ in outputs]
    reports = [dict(map(json.loads, lines)) for lines in whole_lines]
    return reports, "\n".join(err.read_text() for _, err in outputs)


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    """The groups run one after the other, each when a test asks for it; a later one resumes what an earlier saved."""
    folder = tmp_path_factory.mktemp("distributed")

    @functools.cache
    def of(name):
        if name == "one":
            return run(folder, 1, [*SCENARIOS, "save_for_another_number"])
        if name == "two":
            of("one")
            return run(folder, 2, [*SCENARIOS, "save_for_another_number", "resume_from_another_number"])
        of("two")
        return run(folder, 1, ["resume_from_another_number"])

    return of


def check(answer, scenario):
    reports, errors = answer
    for rank, report in enumerate(reports):
        assert scenario in report, f"process {rank} did not get through it:\n{errors}"
        assert report[scenario] == [], f"process {rank}"


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("size", ["one", "two"])
def test_same_bits_whatever_is_sharded(group, size, scenario):
    check(group(size), scenario)


def test_two_processes_resume_what_one_saved(group):
    check(group("two"), "resume_from_another_number")


def test_one_process_resumes_what_two_saved(group):
    check(group("resumed"), "resume_from_another_number")
