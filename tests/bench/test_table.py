"""What the terminal shows of a results file, and the numbers behind it."""

from __future__ import annotations

import copy
import io
import math

import pytest
from rich.console import Console

from bench import made_up
from samestep.bench import summary, table

RESULTS = made_up.results()


def shown(results, every=False, width=80):
    file = io.StringIO()
    table.show(Console(file=file, width=width, highlight=False), results, every)
    return file.getvalue()


def test_groups_fit_into_80_columns_and_hold_every_case():
    text = shown(RESULTS)
    assert "…" not in text
    heads = [line for line in text.splitlines() if line.startswith("dtype")]
    assert len(heads) == 4  # two suites, two thread counts
    assert all(line.split() == ["dtype", "size", "cases", "best", "peer", "most", "default", "limit", "faster", "tie",
                                "slower"] for line in heads)
    rows = [line for line in text.splitlines() if line.startswith(("float", "bfloat"))]
    count = {"operator": 0, "optimizer": 0}
    for title in ("operator, 1 thread", "optimizer, 1 thread"):
        block = text.split(f"{title}: samestep's time / the time of")[1].split("\n\n")[0]
        count[title.split(",")[0]] = sum(int(line[19:26]) for line in block.splitlines()[2:])
    assert count == {"operator": 100, "optimizer": 100}
    assert len(rows) < 70


def test_a_group_is_the_median_of_its_cases():
    cases = [case for case in RESULTS["runs"][0]["cases"]
             if case["suite"] == "op" and case["dtype"] == "float32" and case["tensors"] == 1 and case["bytes"] < 2**16]
    row = next(line for line in shown(RESULTS).splitlines() if line.startswith("float32   < 64 KiB"))
    ratios = sorted(case["ratio"] for case in cases)
    middle = (ratios[(len(ratios) - 1) // 2] + ratios[len(ratios) // 2]) / 2
    assert row.split()[4:7] == [str(len(cases)), f"{middle:.2f}", f"{ratios[-1]:.2f}"]


def test_every_case_with_all():
    text = shown(RESULTS, every=True, width=150)
    for run in RESULTS["runs"]:
        for case in run["cases"]:
            assert sum(line.startswith(f"{case['name']}  ") for line in text.splitlines()) == 2
    assert "…" not in text
    fused = next(line for line in text.splitlines() if line.startswith("optim bfloat16 momentum"))
    assert fused.rstrip().endswith("torch fused")


def test_ties_and_slower_cases_are_listed_by_name_and_nothing_else_is():
    text = shown(RESULTS)
    ties, slower = text.split(" ties (the 95 % interval holds 1)\n")[1].split(" slower cases\n")
    for run in RESULTS["runs"]:
        for case in run["cases"]:
            name = f"  {case['name']}, {summary.threads(run['threads'])}: {case['ratio']:.2f} "
            assert (name in ties) == (case["verdict"] == "tie")
            assert (name in slower) == (case["verdict"] == "slower")


def test_the_worst_are_listed_first():
    for verdict in ("tie", "slower"):
        ratios = [case["ratio"] for _, case in summary.ended(RESULTS, verdict)]
        assert len(set(ratios)) > 1
        assert ratios == sorted(ratios, reverse=True)


def test_no_ties_and_no_losses_are_said():
    results = copy.deepcopy(RESULTS)
    for run in results["runs"]:
        run["cases"] = [case for case in run["cases"] if case["verdict"] == "faster"]
    text = shown(results)
    assert "0 ties (the 95 % interval holds 1)\n0 slower cases" in text


def test_wrong_and_missing_peers_and_cases_without_a_result():
    results = copy.deepcopy(RESULTS)
    results["runs"][0]["skipped"]["op float32 K0 99G"] = "it needs more memory [than] there is"
    results["left out"] = {"start-up": "the process hangs"}
    text = shown(results)
    assert "start-up was not measured: the process hangs\n" in text
    assert "torch fused is wrong in 27 of 100 cases of the optimizer (bfloat16): timed, but never the best" in text
    assert "MindSpore was left out of 100 cases of the operator: not installed: pip install mindspore" in text
    assert "op float32 K0 99G, 1 thread: no result, it needs more memory [than] there is" in text
    assert "torch eager is wrong" not in text


def test_geometric_means():
    one, *_ = summary.means(RESULTS)
    cases = [case for case in RESULTS["runs"][0]["cases"] if case["suite"] == "op"]
    for mean, ratios in ((one.best, [case["ratio"] for case in cases]),
                         (one.default, [case["ratios"]["torch eager"]["median"] for case in cases]),
                         (one.limit, [case["ratios"]["limit"]["median"] for case in cases
                                      if case["bytes"] >= 1 << 26])):
        assert mean == pytest.approx(math.prod(ratios) ** (1 / len(ratios)))
    assert one.verdicts.total() == 100
    assert summary.geometric_mean([0.5, None, 2]) == pytest.approx(1)
    assert summary.geometric_mean([None]) is None
    assert summary.median([3, None, 1]) == 2
    assert summary.median([]) is None


def test_a_file_without_cases():
    text = shown({**RESULTS, "runs": [{"threads": 1, "cases": []}], "scaling": [], "startup": []})
    assert "0 ties" in text
    assert "nan" not in text.lower()


def test_growth_and_fixed_costs():
    text = shown(RESULTS)
    assert "tensors                    1 thread            420 ns a tensor  8.00 µs   4.0 %" in text
    assert "import jax, optax                                                      -" in text


@pytest.mark.parametrize(("seconds", "text"), [
    (9.994e-9, "9.99 ns"), (1.234e-6, "1.23 µs"), (9.996e-6, "10.0 µs"), (99.96e-6, "100 µs"), (999.6e-6, "1.00 ms"),
    (0.2034, "203 ms"), (12.34, "12.3 s"), (1234.5, "1,234 s"), (1e-12, "0.00 ns"),
])
def test_times_have_three_digits(seconds, text):
    assert summary.shown_time(seconds) == text


@pytest.mark.parametrize(("ratio", "text"), [
    (None, "-"), (0.0123, "0.012"), (0.09949, "0.099"), (0.0996, "0.10"), (0.996, "1.00"), (9.994, "9.99"),
    (9.996, "10.0"), (1234.5, "1,234.5"),
])
def test_ratios_are_short(ratio, text):
    assert summary.shown_ratio(ratio) == text


def test_a_peer_that_is_wrong_with_one_thread_count_only_counts():
    results = copy.deepcopy(RESULTS)
    results["runs"][0]["cases"][0]["grades"]["NumPy"]["grade"] = "wrong"
    found = {(wrong.suite, wrong.peer): (wrong.cases, wrong.of) for wrong in summary.wrong_peers(results)}
    assert found == {("op", "NumPy"): (1, 100), ("optim", "torch fused"): (27, 100)}
