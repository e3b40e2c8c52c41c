"""Whole runs with made-up peers: what is left out, what outlives a crash, and that a wrong engine gets no times."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bench_fakes
from samestep.bench import method, reading
from samestep.bench.cases import CASES
from samestep.bench.child import plain
from samestep.bench.one_case import RefusedError, SkippedError, Trial
from samestep.bench.run import run

CASE = next(case for case in CASES if case.name == "op float32 K3 1000")
PLAN = method.Plan(seconds=0.0, rounds=9, placements=1, ready=60.0)
TESTS = str(Path(bench_fakes.__file__).parent)


@pytest.fixture(autouse=True)
def _children_find_the_fakes(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", TESTS)


def trial(*names, case=CASE, plan=PLAN, left=(), ours="samestep"):
    events = []
    peers = {name: bench_fakes.load("op", name) for name in ("samestep", *names, "limit")}
    if ours != "samestep":
        peers["samestep"] = bench_fakes.load("op", ours)
    made = Trial(case, peers, plan, dict(left), lambda event, **fields: events.append((event, fields.get("peer"))))
    return made, events


def test_a_row_has_what_the_results_file_needs():
    made, events = trial("reference", "lazy")
    row = made.run()
    assert events == [("peer", "samestep"), ("peer", "reference"), ("peer", "lazy"), ("peer", "limit"),
                      ("timing", None)]
    assert {name: row[name] for name in ("name", "suite", "dtype", "setting", "shape", "tensors", "elements", "bytes",
                                         "rounds", "placements")} == {
        "name": CASE.name, "suite": "op", "dtype": "float32", "setting": "K3", "shape": "1000", "tensors": 1,
        "elements": 1000, "bytes": 1000 * 4 * 7, "rounds": 9, "placements": 1}
    assert row["calls"] > 1
    assert set(row["times"]) == {"samestep", "reference", "lazy", "limit"}
    assert set(row["ratios"]) == {"reference", "lazy", "limit"}
    assert {name: grade["grade"] for name, grade in row["grades"].items()} == {
        "samestep": "same bits", "reference": "same bits", "lazy": "wrong"}
    # Doing nothing is faster, and counts for nothing.
    assert row["ratios"]["lazy"]["median"] > 1
    assert (row["best"], row["verdict"]) == ("reference", "faster")
    assert row["ratio"] == row["ratios"]["reference"]["median"]


@pytest.mark.parametrize(("name", "reason"), [
    ("raising", "OSError: no compiler"), ("missing", "not installed: pip install missing"),
    ("float64 only", "has no float32"), ("late", "while it was timed, ValueError: it is late")])
def test_a_peer_that_fails_is_left_out_with_the_reason(name, reason):
    row = trial(name, "reference")[0].run()
    assert row["left out"] == {name: reason}
    assert name not in row["times"] | row["ratios"] | row["grades"]
    assert row["best"] == "reference"


def test_a_peer_that_is_not_ready_in_time_is_left_out():
    row = trial("hanging", "reference", plan=PLAN._replace(ready=2.0))[0].run()
    assert row["left out"] == {"hanging": "not ready after 2 s"}


def test_a_peer_whose_step_takes_too_long_is_left_out(monkeypatch):
    monkeypatch.setattr(method, "too_slow", lambda seconds, ours: "slow" if ours else None)
    with pytest.raises(SkippedError, match="no peer to compare with \\(reference: slow"):
        trial("reference")[0].run()


def test_large_tensors_are_placed_anew_and_stat_is_there_to_be_cleared():
    large = CASE._replace(shapes=((1 << 22,),), dtype="float16")
    made, events = trial("reference", case=large, plan=PLAN._replace(placements=3))
    row = made.run()
    assert [event for event, _ in events].count("timing") == row["placements"] == 3
    assert (row["rounds"], row["calls"]) == (9, 1)
    assert [len(placement) for placement in made.rounds.times["reference"]] == [3, 3, 3]


def test_a_peer_that_fails_at_a_later_placement_leaves_no_times(monkeypatch):
    made, _ = trial("reference", "talking", case=CASE._replace(shapes=((1 << 20,),)), plan=PLAN._replace(placements=2))
    usual, seen = made._prepared, []

    def prepared(name, *rest):
        seen.append(name)
        if seen.count("talking") == 2 and name == "talking":
            made._leave_out(name, "gone")
            return None, 0.0
        return usual(name, *rest)

    monkeypatch.setattr(made, "_prepared", prepared)
    row = made.run()
    assert row["left out"] == {"talking": "gone"}
    assert set(row["ratios"]) == {"reference", "limit"}


@pytest.mark.parametrize(("ours", "reason"), [
    ("lazy", rf"{CASE.name}: [\d,]+ of [\d,]+ compared elements of samestep differ from the exact rule"),
    ("raising", "samestep cannot do the case: OSError: no compiler"),
    ("late", "samestep cannot do the case: while it was timed, ValueError"),
    ("missing", "samestep cannot do the case: not installed")])
def test_samestep_must_do_every_case(ours, reason):
    with pytest.raises(RefusedError, match=reason):
        trial("reference", ours=ours)[0].run()


def test_a_case_without_a_right_peer_is_skipped():
    with pytest.raises(SkippedError, match=r"no peer to compare with \(lazy is wrong\)"):
        trial("lazy")[0].run()
    with pytest.raises(SkippedError, match="none was chosen"):
        trial()[0].run()


def test_json_has_no_number_for_infinity():
    assert plain({"ulps": np.inf, "x": [(1.5, float("nan"))]}) == {"ulps": "inf", "x": [[1.5, "nan"]]}


def measured(**options):
    options = {"cases": [CASE.name], "module": "bench_fakes", "plan": PLAN, **options}
    return run(**options)


def test_a_run_goes_on_after_crashes_and_writes_the_file(tmp_path, capfd):
    seen, counts = [], [1, 2][:len(method.usable())]
    found = measured(peers=["reference", "talking", "crashing", "dying late"], out=tmp_path / "new", threads=counts,
                     quick=True, cases=[CASE.name, "op float32 K2 64"], watch=lambda *what: seen.append(what))
    for count, one in zip(counts, found["runs"], strict=True):
        assert (one["threads"], one["pinned"]) == (count, method.usable()[:count])
        assert [row["name"] for row in one["cases"]] == [CASE.name]
        assert one["cases"][0]["left out"] == {
            "crashing": "the process died: SIGKILL (a compiler talks)", "dying late": "only dies at 64"}
        assert set(one["cases"][0]["ratios"]) == {"reference", "talking", "limit"}
        # Which one died when all were at work, nobody knows.
        assert list(one["skipped"]) == ["op float32 K2 64"]
        assert "reference: the process died while the case was timed: SIGKILL" in one["skipped"]["op float32 K2 64"]
    assert seen[0][2].startswith("1 thread: conformance suite, op: ")
    # After a crash, and quickly with other threads, the suite is not gone through again.
    suite = [doing.split(":", 1)[1] for _, _, doing in seen if "items" in doing]
    assert len(suite) == len(set(suite)) > 1
    assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)
    assert seen[-1][:2] == (2 * len(counts), 2 * len(counts))
    assert seen[-1][2].endswith(CASE.name)
    assert capfd.readouterr() == ("", "")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["results.json"]
    assert reading.read(tmp_path / "new" / "results.json") == found


def test_nothing_is_timed_where_verification_is_red(tmp_path):
    seen = []
    wrong = r"item [\d,]+ of the [\d,]+ of the conformance suite of rule cann fails; `samestep verify --rule cann`"
    with pytest.raises(RefusedError, match=wrong):
        measured(module="bench_wrong_engine", out=tmp_path, watch=lambda *what: seen.append(what[2]))
    assert not list(tmp_path.iterdir())
    assert not [doing for doing in seen if "rounds" in doing]


@pytest.mark.parametrize(("module", "verify"), [("bench_wrong_engine", True), ("bench_wrong_peer", False)])
def test_a_process_that_refuses_says_so_and_ends_with_1(module, verify):
    job = {"threads": 1, "cases": [CASE.name], "peers": None, "module": module, "verify": verify,
           "plan": PLAN._asdict(), "left": {}}
    done = subprocess.run([sys.executable, "-m", "samestep.bench.child"], input=json.dumps(job), capture_output=True,
                          text=True, check=False)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    kinds = [event["event"] for event in events]
    assert done.returncode == 1
    assert kinds[-1] == "refused"
    assert not {"timing", "result", "done"} & set(kinds)


@pytest.mark.parametrize(("options", "message"), [
    ({"suites": ["gpu"]}, "there is no suite 'gpu'; the suites are op and optim"),
    ({"peers": ["torch"]}, "there is no peer 'torch'; the peers are reference, talking"),
    ({"threads": [100_000]}, r"100000 threads: this process may use \d+ processors"),
    ({"threads": [0]}, "0 threads"), ({"threads": [1, 1]}, "the thread counts 1, 1 name one twice"),
    ({"threads": []}, "there is nothing to measure"), ({"cases": ["op"]}, "there is no case 'op'"),
    ({"suites": ["optim"]}, "there is nothing to measure")])
def test_what_does_not_exist_is_said_before_anything_runs(options, message, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", functools.partial(pytest.fail, "a process was started"))
    options = {"suites": ["op"], **options}
    with pytest.raises(ValueError, match=message):
        measured(**options)
