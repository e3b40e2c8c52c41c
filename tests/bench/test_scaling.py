"""Scaling: the fit finds what it is given, a bend shows, wrong bits have no time, and every row is whole."""

from __future__ import annotations

import json
import sys
import textwrap

import numpy as np
import pytest

from samestep.bench import method, scaling

torch = pytest.importorskip("torch")
from samestep.bench import scaling_points  # noqa: E402  (it imports torch)
from samestep.bench.one_case import RefusedError  # noqa: E402

SIZES = [1 << power for power in range(20, 30)]
COUNTS = [10**power for power in range(6)]


def line(x, fixed, slope):
    return [fixed + slope * each for each in x]


@pytest.mark.parametrize(("x", "fixed", "slope"), [
    (SIZES, 2e-5, 1e-9), (SIZES, 0.0, 3e-10), (COUNTS, 8e-6, 4e-7), (COUNTS, 5e-6, 0.0), ([1, 2], 1.0, 1.0)])
def test_a_line_is_found_exactly(x, fixed, slope):
    found = scaling.fit(x, line(x, fixed, slope))
    assert found == pytest.approx({"fixed": fixed, "slope": slope, "residual": 0}, rel=1e-9, abs=1e-12)


def test_noise_of_a_few_percent_is_a_residual_of_a_few_percent():
    noise = np.random.default_rng(0).uniform(-0.03, 0.03, len(SIZES))
    found = scaling.fit(SIZES, np.array(line(SIZES, 2e-5, 1e-9)) * (1 + noise))
    assert found["slope"] == pytest.approx(1e-9, rel=0.03)
    assert 0.01 < found["residual"] < 0.06


@pytest.mark.parametrize("at", range(len(SIZES)))
def test_one_point_off_the_line_shows_wherever_it_is(at):
    times = line(SIZES, 2e-5, 1e-9)
    times[at] *= 1.5
    assert scaling.fit(SIZES, times)["residual"] > 0.14  # the first could have a fixed cost, which explains half of it


@pytest.mark.parametrize("x", [SIZES, COUNTS])
def test_a_bend_shows(x):
    """From the middle on each costs twice as much."""
    bend = x[len(x) // 2]
    times = [1e-9 * (each + max(0, each - bend)) for each in x]
    assert scaling.fit(x, times)["residual"] > 0.2


@pytest.mark.parametrize("x", [SIZES, COUNTS])
def test_growth_with_the_square_shows(x):
    assert scaling.fit(x, [1e-9 * each + 1e-9 / x[-1] * each * each for each in x])["residual"] > 0.25


def test_no_cost_is_negative():
    found = scaling.fit([1, 10, 100], [1e-9, 2e-8, 3e-7])
    assert found["fixed"] == 0
    assert found["slope"] > 0
    assert found["residual"] > 0.2


def test_the_largest_point_does_not_hide_the_smallest():
    """In a fit of absolute errors 8 us of fixed cost are lost beside 2 % of a second."""
    found = scaling.fit(COUNTS, [*line(COUNTS[:-1], 8e-6, 1e-5), 1.02])
    assert found["fixed"] == pytest.approx(8e-6, rel=0.1)


@pytest.fixture
def taken(monkeypatch):
    """The times of each row, and its rounds."""
    found, right = [], scaling._times
    monkeypatch.setattr(scaling, "_times", lambda points, rounds, sweep: found.append(
        (right(points, rounds, sweep), rounds)) or found[-1][0])
    return found


def test_rows_over_tensors(taken):
    row = scaling.over_tensors([1, 10, 100], rounds=2)
    json.dumps(row, allow_nan=False)
    assert (row["unit"], row["rounds"]) == ("s", 2)
    assert [(point["tensors"], point["elements"]) for point in row["points"]] == [(1, 16), (10, 160), (100, 1600)]
    assert all(0 < point["p10"] <= point["median"] <= point["p90"] for point in row["points"])
    medians = [point["median"] for point in row["points"]]
    assert row["fit"] == scaling.fit([1, 10, 100], scaling.levelled(*taken[0]))
    assert row["most per tensor"] == max((medians[1] - medians[0]) / 9, (medians[2] - medians[0]) / 99)


@pytest.mark.parametrize("make", [scaling_points.of_optimizer, scaling_points.of_operator])
def test_rows_over_elements(make, monkeypatch, taken):
    swept = []
    monkeypatch.setattr(scaling_points, "SWEPT", 1 << 12)
    monkeypatch.setattr("samestep.engine.cpu.caches", lambda: {"L2": 1 << 10, "L3": 1 << 18})
    row = scaling.over_elements(lambda sizes: swept.append(list(sizes)) or make(sizes), [1000, 5000], rounds=2)
    json.dumps(row, allow_nan=False)
    assert swept == [[1000, 5000], [1 << 18]]  # 16 bytes each: sixteen times the larger cache
    assert [(point["tensors"], point["elements"]) for point in row["points"]] == [(1, 1000), (1, 5000)]
    assert all(0 < point["p10"] <= point["median"] <= point["p90"] for point in row["points"])
    assert row["fit"] == scaling.fit([1000, 5000], scaling.levelled(*taken[0]))
    assert row["left out"] == {}


def test_what_does_not_fit_into_memory_is_left_out_and_says_so(monkeypatch):
    monkeypatch.setattr(scaling_points, "SWEPT", 1000)
    monkeypatch.setattr("samestep.engine.cpu.caches", dict)
    monkeypatch.setattr(scaling, "available_memory", lambda: scaling.SPARE + 16 * (1000 + 4000))
    row = scaling.over_elements(scaling_points.of_operator, [1000, 4000, 4001, 1 << 29], rounds=1)
    assert [point["elements"] for point in row["points"]] == [1000, 4000]
    assert list(row["left out"]) == ["4001 elements", "536870912 elements"]
    assert row["left out"]["536870912 elements"] == "it needs 8.0 GiB of memory, and 0.0 GiB are free for it"


def test_memory_that_is_available():
    available = scaling.available_memory()
    if sys.platform == "linux":
        assert available is not None
    assert available is None or 1 << 20 < available < 1 << 50


def test_a_machine_that_changes_its_speed_midway_bends_no_line():
    """Of three points all are slow in half of the rounds, and noise decides which medians show it."""
    rng = np.random.default_rng(0)
    sizes, visits, rounds = (1000, 4000, 16000), (4, 2, 1), 10
    speed = np.where(np.arange(rounds) < 5, 1.0, 1.4)
    times = [(speed[:, None] * n * (1 + rng.uniform(-0.01, 0.01, (rounds, k)))).ravel().tolist()
             for n, k in zip(sizes, visits, strict=True)]
    found = np.array(scaling.levelled(times, rounds)) / sizes
    assert found.max() / found.min() < 1.02
    bent = [times[0], [1.2 * t for t in times[1]], times[2]]
    found = np.array(scaling.levelled(bent, rounds)) / sizes
    assert 1.18 < found[1] / found[0] < 1.22  # a bend stays one


def test_every_round_visits_all_points_and_every_other_one_backwards():
    seen = []

    def point(name, visit):
        return scaling_points.Point(1, 1, visit, lambda: seen.append(name), lambda: None)

    times = scaling._times([point("a", 2), point("b", 1)], 2, lambda: seen.append("."))
    assert "".join(seen) == ".a.a.b" + ".b.a.a"
    assert [len(seconds) for seconds in times] == [4, 2]
    seen.clear()
    scaling._times([point("a", 2)], 1, None)
    assert seen == ["a"] * 4  # each timed step after one that is not


POINTS = {
    "tensors": lambda: scaling_points.of_tensors([300])[0],
    "optimizer": lambda: scaling_points.of_optimizer([6000])[0],
    "operator": lambda: scaling_points.of_operator([6000])[0],
}


@pytest.mark.parametrize("kind", POINTS)
def test_right_bits_are_not_refused(kind):
    POINTS[kind]().check()


@pytest.mark.parametrize("kind", ["optimizer", "operator"])
@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("place", [0, 5999])
@pytest.mark.parametrize("column", range(3))
def test_one_wrong_bit_at_an_end_is_found_in_any_step(kind, step, place, column, monkeypatch):
    """Also in the gradient, which no step may write (column 1)."""
    held, steps = [], []
    allocate, step_of = scaling_points._allocated, {"optimizer": scaling_points.SGD, "operator": scaling_points.op}
    monkeypatch.setattr(scaling_points, "_allocated", lambda *given: held.append(allocate(*given)) or held[-1])
    point = POINTS[kind]()
    name = "step" if kind == "optimizer" else "sgd_"
    right = getattr(step_of[kind], name)

    def wrong(*given, **named):
        right(*given, **named)
        steps.append(None)
        if len(steps) == step:
            if kind == "operator":
                array = given[(0, 1, 3)[column]]
            elif column == 2:
                array = next(iter(given[0].state.values()))["momentum_buffer"].numpy()
            else:
                array = (held[0].parameters, held[0].gradient)[column][0]
            array.view(np.uint32)[place] ^= 1

    monkeypatch.setattr(step_of[kind], name, wrong)
    with pytest.raises(RefusedError, match=rf"step {step}: 1 of [\d,]+ numbers"):
        point.check()


def test_nothing_is_timed_where_a_check_fails(monkeypatch):
    def refuse():
        raise RefusedError("red")

    monkeypatch.setattr(scaling, "_times", lambda *_: pytest.fail("it was timed"))
    points = [scaling_points.Point(1, 1, 1, refuse, lambda: None), scaling_points.Point(1, 2, 1, refuse, refuse)]
    with pytest.raises(RefusedError, match="red"):
        scaling._row(points, 1, [1, 2], None)


def test_many_tensors_are_checked_at_both_ends():
    assert scaling_points._picked(5, 8) == [0, 1, 2, 3, 4]
    places = scaling_points._picked(1 << 29, 4096)
    assert (places[0], places[-1]) == (0, (1 << 29) - 1)
    assert 4000 < len(places) == len(set(places)) <= 4098


# The process with fewer and smaller points.
CHILD = """
import sys
from samestep.bench import scaling, scaling_points
scaling.TENSORS_QUICK, scaling.ELEMENTS_QUICK, scaling.ROUNDS_QUICK = (1, 10), (1000, 2000), 1
scaling_points.SWEPT = 1000
{sabotage}
sys.exit(scaling.main(int(sys.argv[-2]), sys.argv[-1] == "quick"))
"""


@pytest.fixture
def child(monkeypatch):
    """A function that makes `measure` start this process instead."""
    start = scaling.subprocess.Popen

    def use(sabotage, script=CHILD):
        script = script.format(sabotage=textwrap.dedent(sabotage))
        monkeypatch.setattr(scaling.subprocess, "Popen", lambda command, **named: start(
            [command[0], "-c", script, *command[-2:]], **named))

    return use


def test_the_process_measures_all_three_kinds_on_its_processors(child):
    child("""
        import os
        from samestep.engine import threads
        right = scaling._row
        def row(*given, **named):
            print("a line of a library")
            assert len(os.sched_getaffinity(0)) == threads.get_num_threads() == 1
            return right(*given, **named)
        scaling._row = row
    """)
    seen = []
    rows = scaling.measure(1, True, seen.append)
    kinds = ["tensors", "elements of the optimizer", "elements of the operator"]
    assert [row["kind"] for row in rows] == kinds
    assert seen == [f"scaling over {kind}, 1 thread" for kind in kinds]
    assert {row["threads"] for row in rows} == {1}
    assert [len(row["points"]) for row in rows] == [2, 2, 2]


def test_wrong_bits_in_the_process_end_the_measurement(child):
    child("""
        from samestep.engine import cpu
        right = cpu.build
        cpu.build = lambda kernel, *more: right(kernel._replace(key=kernel.key._replace(weight_decay=False)), *more)
    """)
    seen = []
    with pytest.raises(RefusedError, match="other bits than the rule, so nothing is timed"):
        scaling.measure(1, True, seen.append)
    assert seen == ["scaling over tensors, 1 thread"]


def test_a_process_that_fails_says_why(child):
    child("raise MemoryError('none left')", "{sabotage}")
    with pytest.raises(RuntimeError, match="scaling, 1 thread: the process ended with 1: MemoryError: none left"):
        scaling.measure(1, True, print)


def test_an_interrupt_ends_the_process_too(child):
    child("""
        import time
        print('{"event": "begins", "name": "it"}', flush=True)
        time.sleep(600)
    """, "{sabotage}")

    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scaling.measure(1, True, interrupt)


def test_more_threads_than_processors_are_refused(monkeypatch):
    monkeypatch.setattr(method, "usable", lambda: [0, 3])
    with pytest.raises(ValueError, match="3 threads have no 3 processors: this process may use 2"):
        scaling.measure(3, True, print)
