"""Every pair of patterns: that all are there, that a run finds what is wrong, and that a killed one goes on."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest

import verify_targets
from samestep.verify import fingerprint, oracle
from samestep.verify.patterns import word_of
from samestep.verify.suite import exhaustive, target
from samestep.verify.suite.exhaustive import Part, Run
from samestep.verify.suite.judge import expected

FILE = str(Path(verify_targets.__file__))
PART = Part("K3", "bfloat16")


def maker(name):
    return functools.partial(target.load, f"{FILE}:{name}")


def file_of(plan, part=PART):
    return exhaustive.path_of(plan, plan.make(), part)


def done(plan, part=PART):
    """The state that the part's file holds."""
    return exhaustive.read(file_of(plan, part))


def work(plan, part=PART, **options):
    plan.folder.mkdir(exist_ok=True)
    exhaustive.work(plan, part, file_of(plan, part), **options)


def test_all_pairs_are_there_once():
    words = [exhaustive.round_of(PART, index).problem().parameters for index in range(0, 65536, 97)]
    assert all((column == column[0]).all() for column in words)
    # The factor is odd, so different rounds have different patterns, and all 65,536 rounds all of them.
    assert len({index * 40503 % exhaustive.PATTERNS for index in range(exhaustive.PATTERNS)}) == exhaustive.PATTERNS
    assert [int(column[0]) for column in words] == [index * 40503 % 65536 for index in range(0, 65536, 97)]
    gradient = exhaustive.round_of(PART, 5).problem().gradient
    assert np.array_equal(gradient, np.arange(65536))


@pytest.mark.parametrize("key", ["K0", "K1", "K2", "K3", "K4", "K5"])
def test_the_rest_follows_from_the_pair_and_is_varied(key):
    problems = [exhaustive.round_of(Part(key, "float16"), index).problem() for index in range(28)]
    again = exhaustive.round_of(Part(key, "float16"), 3).problem()
    assert all(np.array_equal(x, y) for x, y in zip(again[2:6], problems[3][2:6], strict=True))
    settings = {(repr(p.learning_rate), repr(p.momentum)) for p in problems}
    assert len(settings) == len(exhaustive.LEARNING_RATES) * len(set(map(repr, exhaustive.MOMENTA)))
    for problem in problems:
        assert len(np.unique(problem.accum)) == 65536
        assert len(np.unique(problem.stat)) == len({word_of(x, "float16") for x in exhaustive.STATS})


@pytest.mark.parametrize("dtype", exhaustive.DTYPES)
def test_the_judge_of_a_round_is_the_oracle(dtype):
    rng = np.random.default_rng(11)
    for index in rng.integers(0, 65536, 8).tolist():
        problem = exhaustive.round_of(Part("K3", dtype), index).problem()
        places = rng.integers(0, 65536, 100)
        with np.errstate(all="ignore"):
            right = expected(problem)
        before = [column[places].tolist() for column in problem[2:6]]
        after = [column[places].tolist() for column in (right.parameters, right.accum, right.stat)]
        lr, m = (word_of(number, dtype) for number in (problem.learning_rate, problem.momentum))
        assert not oracle.differing(before, after, dtype=dtype, learning_rate=lr, momentum=m,
                                    dampening=problem.dampening, weight_decay=problem.weight_decay)


def test_a_killed_part_goes_on_and_finds_the_same(tmp_path):
    limit = 300
    plan = Run(maker("wrong_for_some"), "spec", 0, tmp_path / "killed", limit)
    plan.folder.mkdir()
    path = file_of(plan)
    script = ("import functools, pathlib\nfrom samestep.verify.suite import exhaustive as e, target\n"
              "e.KEEP_EVERY = 0.02\n"
              f"make = functools.partial(target.load, {FILE + ':wrong_for_some'!r})\n"
              f"plan = e.Run(make, 'spec', 0, pathlib.Path({str(plan.folder)!r}), {limit})\n"
              f"e.work(plan, e.Part(*{tuple(PART)!r}), pathlib.Path({str(path)!r}))\n")
    counts = []
    for enough in (20, 60):
        process = subprocess.Popen([sys.executable, "-c", script])
        while done(plan).rounds < enough:
            assert process.poll() is None
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        counts.append(done(plan).rounds)
    assert 20 <= counts[0] < counts[1] < limit
    work(plan)
    whole = plan._replace(folder=tmp_path / "whole")
    work(whole)
    assert done(plan) == done(whole)
    state = done(plan)
    assert (state.rounds, state.elements) == (limit, limit * 3 * 65536)
    assert state.wrong == sum(index * 40503 % 65536 % 5 for index in range(limit))
    assert sum(state.histogram["stat"]) == limit * 65536


def test_a_part_that_is_done_is_not_done_again(tmp_path):
    plan = Run(maker("correct"), "spec", 0, tmp_path, 3)
    work(plan)
    state = done(plan)
    calls = []
    work(plan._replace(make=lambda: counting(plan, calls)))
    assert (calls, done(plan)) == ([], state)
    work(plan._replace(make=lambda: counting(plan, calls), limit=5))
    assert len(calls) == 2
    assert done(plan).elements == 5 * 3 * 65536


def counting(plan, calls):
    subject = plan.make()

    def run(*tensors, **attributes):
        calls.append(1)
        return subject.run(*tensors, **attributes)

    return subject._replace(run=run)


def test_another_order_seed_or_source_begins_anew(tmp_path):
    plan = Run(maker("correct"), "spec", 0, tmp_path, 1)
    subject = plan.make()
    paths = {
        exhaustive.path_of(plan, subject, PART), exhaustive.path_of(plan._replace(order="ascend950"), subject, PART),
        exhaustive.path_of(plan._replace(seed=1), subject, PART),
        exhaustive.path_of(plan, subject._replace(identity="other"), PART),
        exhaustive.path_of(plan, subject._replace(name="other"), PART),
        exhaustive.path_of(plan, subject, Part("K3", "float16")),
        exhaustive.path_of(plan, subject, Part("K1", "bfloat16")),
    }
    assert len(paths) == 7


def test_a_damaged_state_is_refused(tmp_path):
    plan = Run(maker("correct"), "spec", 0, tmp_path, 1)
    path = exhaustive.path_of(plan, plan.make(), PART)
    for text in ("", "{", '{"rounds": 1, "unknown": 2}', "[1]"):
        path.write_text(text)
        with pytest.raises(exhaustive.StoppedError, match="delete it to begin that part again"):
            work(plan)


def test_a_state_is_replaced_as_a_whole(tmp_path, monkeypatch):
    path = tmp_path / "state.json"
    exhaustive.keep(path, exhaustive.State(rounds=1))

    def killed(one, other):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        exhaustive.keep(path, exhaustive.State(rounds=2))
    assert exhaustive.read(path).rounds == 1


def test_a_worker_without_its_parent_stops(tmp_path, monkeypatch):
    monkeypatch.setattr(exhaustive, "KEEP_EVERY", 0.0)
    plan = Run(maker("correct"), "spec", 0, tmp_path, 50)
    work(plan, parent=os.getppid() + 1)
    assert done(plan).rounds == 0  # not even its last state, which the next run computes again


def test_a_run_over_parts_in_processes(tmp_path, monkeypatch):
    named = types.SimpleNamespace(sentence="a sentence")
    monkeypatch.setattr(fingerprint, "of_callable", lambda *tensors, **options: named)
    plan = Run(maker("undamped"), "spec", 0, tmp_path, 4)
    parts = [Part("K0", "bfloat16"), Part("K3", "bfloat16"), Part("K1", "float16")]
    seen = []
    results = exhaustive.run(plan, parts, watch=lambda *counts: seen.append(counts))
    assert seen[0] == (0, 12, 0)
    assert seen[-1] == (12, 12, 2)
    assert [(check.name, check.passed) for check in results.checks] == [
        ("exhaustive/bfloat16/K0", True), ("exhaustive/bfloat16/K3", False), ("exhaustive/float16/K1", False)]
    assert all(check.elements == 4 * 3 * 65536 for check in results.checks)
    assert sum(results.histogram["bfloat16", "accum"]) == 2 * 4 * 65536
    for check in results.failed:
        problem = check.failure.problem
        assert problem.parameters.size == 1
        assert problem.dampening == 1.0
        assert check.failure.found > 65536
    assert results.sentences == {"bfloat16": "a sentence", "float16": "a sentence"}
    assert results.level == "exhaustive"
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json"] * 3
    json.loads(next(tmp_path.iterdir()).read_text())


def test_what_a_worker_raises_comes_through(tmp_path):
    plan = Run(maker("correct"), "spec", 0, tmp_path, 1)
    exhaustive.path_of(plan, plan.make(), PART).write_text("{")
    with pytest.raises(exhaustive.StoppedError):
        exhaustive.run(plan, [PART], watch=lambda *counts: None)


def test_a_worker_that_dies_stops_the_run(tmp_path):
    plan = Run(maker("crashes"), "spec", 0, tmp_path, 1)
    with pytest.raises(exhaustive.StoppedError, match="a worker died"):
        exhaustive.run(plan, [PART], watch=lambda *counts: None)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", exhaustive.DTYPES)
@pytest.mark.parametrize("key", ["K0", "K1", "K2", "K3", "K4", "K5"])
def test_engine_cpu_on_some_of_all_pairs(tmp_path, dtype, key):
    plan = Run(functools.partial(target.of_engine, "cpu"), "spec", 0, tmp_path, 1500)
    work(plan, Part(key, dtype))
    state = done(plan, Part(key, dtype))
    assert (state.rounds, state.wrong, state.first, state.message) == (1500, 0, -1, "")
