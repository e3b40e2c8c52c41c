"""The method with made-up samplers and clocks: no test here depends on real time."""

from __future__ import annotations

import gc
import itertools
import math
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from samestep.bench import intervals, method


class Clock:
    """A clock that only the things timed move."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def step(self, seconds):
        def step():
            self.now += seconds

        return step


def test_the_order_gives_every_place_and_both_neighbours():
    orders = [method.order("ABC", turn) for turn in range(6)]
    assert orders == [list(o) for o in ("ABC", "CBA", "BCA", "ACB", "CAB", "BAC")]
    pairs = {(one, other) for each in orders for one, other in itertools.pairwise(each)}
    assert len(pairs) == 6


@pytest.mark.parametrize(("seconds", "calls"), [(1e-6, 1000), (0.3e-3, 3), (0.9e-3, 1), (5.0, 1), (1e-8, 100_000)])
def test_calls_of_a_sample_take_a_millisecond(seconds, calls):
    clock = Clock()
    assert method.calibrate(clock.step(seconds), clock) == pytest.approx(calls, rel=1e-3)


def test_calibration_ends_with_a_coarse_clock():
    clock = Clock()
    ticks = lambda: math.floor(clock.now / 1e-4) * 1e-4  # noqa: E731
    assert 800 <= method.calibrate(clock.step(1e-6), ticks) <= 1250


def test_a_sample_is_seconds_per_call():
    clock, calls = Clock(), []
    step = lambda: (calls.append("step"), clock.step(2.0)())  # noqa: E731
    assert method.sampler(step, 3, None, True, clock)() == 2.0
    assert calls == ["step"] * 4  # the first one is not timed
    calls.clear()
    assert method.sampler(step, 1, None, False, clock)() == 2.0
    assert calls == ["step"]


def test_what_comes_before_a_call_is_not_timed():
    clock, calls = Clock(), []
    before = lambda: (calls.append("before"), clock.step(100.0)())  # noqa: E731
    step = lambda: (calls.append("step"), clock.step(2.0)())  # noqa: E731
    assert method.sampler(step, 1, before, True, clock)() == 2.0
    assert calls == ["before", "step"]


def samplers(clock, **values):
    """Samplers that take their values in turn, the last one for ever."""
    def sampler(rest):
        def sample():
            seconds = rest.pop(0) if len(rest) > 1 else rest[0]
            clock.now += seconds
            return seconds

        return sample

    return {name: sampler(list(found)) for name, found in values.items()}


def test_rounds_fill_the_time_and_are_never_fewer_than_asked():
    clock, rounds = Clock(), method.Rounds()
    rounds.measure(samplers(clock, ours=[0.1], theirs=[0.4]), 10.0, 9, clock)
    assert rounds.kept == 20
    rounds.measure(samplers(clock, ours=[0.1], theirs=[0.4]), 0.0, 9, clock)
    assert rounds.kept == 29
    assert [len(placement) for placement in rounds.times["ours"]] == [20, 9]


def test_a_noisy_round_is_repeated_and_counted():
    clock, rounds = Clock(), method.Rounds()
    rounds.measure(samplers(clock, ours=[1.0] * 6 + [1.6] + [1.0], limit=[1.0]), 0.0, 9, clock)
    assert (rounds.kept, rounds.repeated) == (9, 1)
    assert rounds.times["ours"] == [[1.0] * 9]
    assert clock.now == pytest.approx(20.6)  # the round was taken, in full


def test_noise_of_the_limit_counts_too():
    clock, rounds = Clock(), method.Rounds()
    rounds.measure(samplers(clock, ours=[1.0], limit=[1.0] * 6 + [9.0] + [1.0]), 0.0, 9, clock)
    assert rounds.repeated == 1


def test_a_little_slower_is_no_noise():
    clock, rounds = Clock(), method.Rounds()
    rounds.measure(samplers(clock, ours=[1.0] * 6 + [1.4] * 3), 0.0, 9, clock)
    assert rounds.repeated == 0
    assert 1.4 in rounds.times["ours"][0]


def test_a_machine_that_stays_noisy_is_measured_as_it_is():
    clock, rounds = Clock(), method.Rounds()
    rounds.measure(samplers(clock, ours=[1.0] * 6 + [2.0]), 0.0, 60, clock)
    assert 0 < rounds.repeated <= rounds.kept / 2
    assert rounds.times["ours"][0].count(2.0) == 54


def test_no_garbage_is_collected_within_rounds():
    seen = []
    method.Rounds().measure({"ours": lambda: seen.append(gc.isenabled()) or 1.0}, 0.0, 3)
    assert seen == [False] * 3
    assert gc.isenabled()


@pytest.mark.parametrize(("count", "low", "high"), [(1, 0, 0), (5, 0, 4), (6, 0, 5), (9, 1, 7), (31, 9, 21),
                                                    (300, 132, 167)])
def test_the_interval_of_a_median_is_the_binomial_one(count, low, high):
    # Places from tables of the sign test; shuffled values must be sorted first.
    values = np.random.default_rng(0).permutation(count).astype(float).tolist()
    assert intervals.of_median(values) == (low, high)


def test_the_interval_covers_the_median_as_often_as_it_says():
    rng = np.random.default_rng(1)
    found = [intervals.of_median(row) for row in rng.lognormal(size=(2000, 31)).tolist()]
    assert 0.95 <= np.mean([low <= 1 <= high for low, high in found]) <= 0.99


def test_ratios_are_paired_by_round():
    ours, theirs = [[1.0, 10.0, 3.0]], [[2.0, 20.0, 6.0]]  # a machine that wavers; half as long each time
    assert intervals.ratio(ours, theirs) == {"median": 0.5, "p10": 0.5, "p90": 0.5, "low": 0.5, "high": 0.5}


def test_the_interval_holds_every_placements_median():
    ours = [[0.8] * 20, [0.9] * 20, [1.1] * 3, []]
    found = intervals.ratio(ours, [[1.0] * len(row) for row in ours])
    assert (found["low"], found["high"]) == (0.8, 1.1)


def row(median, low, high):
    return {"median": median, "p10": low, "p90": high, "low": low, "high": high}


@pytest.mark.parametrize(("low", "high", "verdict"), [
    (0.8, 0.99, "faster"), (0.9, 1.0, "tie"), (0.9, 1.2, "tie"), (1.0, 1.2, "tie"), (1.01, 1.2, "slower")])
def test_a_verdict_needs_the_whole_interval(low, high, verdict):
    found = intervals.judged({"samestep": 1.0, "torch": 1.0}, {"torch": row(0.95, low, high)}, set())
    assert found == {"best": "torch", "ratio": 0.95, "low": low, "high": high, "verdict": verdict}


def test_best_is_the_fastest_peer_that_is_right():
    times = {"samestep": 1.0, "limit": 0.1, "wrong": 0.2, "slow": 3.0, "fast": 2.0}
    ratios = {name: row(1 / seconds, 0.3, 0.6) for name, seconds in times.items() if name != "samestep"}
    assert intervals.judged(times, ratios, {"wrong"})["best"] == "fast"
    assert intervals.judged(times, ratios, {"wrong", "slow", "fast"})["best"] is None


def test_a_slow_peer_is_left_out_beside_ours_only():
    assert method.too_slow(1.9, 1e-6) is None
    assert method.too_slow(5.0, 0.3) is None
    assert method.too_slow(5.0, 0.2) == "a step took 5.0 s, and a round has 4.0 s for it"


def stubborn():
    while True:
        try:
            time.sleep(10)
        except Exception:
            continue


def test_what_takes_too_long_is_ended_even_if_it_swallows_exceptions():
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(method.TookTooLong), method.at_most(0.05):
        stubborn()
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_process_is_pinned_before_numpy_is_there():
    script = ("import sys; from samestep.bench import method, child\n"
              "print(method.pin(1), len(method.usable()), 'numpy' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"[{min(os.sched_getaffinity(0))}] 1 False"


def test_every_library_is_told_the_number_of_threads():
    found = method.environment(2, {"HOME": "/h", "OMP_NUM_THREADS": "64"})
    assert found["HOME"] == "/h"
    assert {found[name] for name in ("OMP_NUM_THREADS", "SAMESTEP_NUM_THREADS", "NUM_CPU_THREADS", "NPROC")} == {"2"}
    assert "XLA_FLAGS" not in found
    assert method.environment(1, {"XLA_FLAGS": "--a"})["XLA_FLAGS"] == "--a --xla_cpu_multi_thread_eigen=false"
