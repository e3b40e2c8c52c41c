"""Reports of a comparison: a kernel that updates nothing is red, beside the rules of today that pass it."""

from __future__ import annotations

import csv
import html
import json
import re
from pathlib import Path

import numpy as np
import pytest

from samestep.verify.compare import metrics
from samestep.verify.compare.comparison import compare, verdict
from samestep.verify.observation import Observation, Problem
from samestep.verify.patterns import word_of
from samestep.verify.report import writing as report
from samestep.verify.suite import judge
from verify.browser import chromium, console

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "verify.md"


def problem(n=512):
    rng = np.random.default_rng(3)
    p, g, a = rng.uniform(0.2, 0.5, n), rng.standard_normal(n), np.zeros(n)
    words = [np.array([word_of(x, "bfloat16") for x in values], np.uint16) for values in (p, g, a)]
    return Problem("bfloat16", (n,), *words, np.full(n, word_of(1.0, "bfloat16"), np.uint16), 1e-3, 0.9)


@pytest.fixture(scope="module")
def steps():
    """A step whose parameters were not updated, and a right one."""
    given = problem()
    right = judge.expected(given)
    idle = Observation(given, given.parameters, right.accum, right.stat, given.gradient)
    return [compare(Observation(given, right.parameters, right.accum, right.stat), step=0), compare(idle, step=1)]


def test_json(tmp_path, steps):
    report.write_comparison(steps, tmp_path / "c.json", subject="dump", sentences=["nothing moves"])
    read = json.loads((tmp_path / "c.json").read_text(), parse_constant=pytest.fail)
    assert (read["same"], read["subject"], read["sentences"]) == (False, "dump", ["nothing moves"])
    right, idle = read["steps"]
    assert (right["same"], idle["same"]) == (True, False)
    assert idle["update"]["got_moved"] == 0
    parameters = idle["tensors"][0]
    assert parameters["differing"] == idle["update"]["still"] > 5
    assert re.fullmatch("0x[0-9a-f]{4}", parameters["expected"])
    assert {metric["name"] for metric in parameters["metrics"] if metric["passed"]} >= {
        "mixed tolerance", "MERE", "MARE", "cosine"}
    section = DOCUMENTATION.read_text().partition("### comparison.json")[2].partition("\n#")[0]
    documented = set(re.findall(r"`(\w+)`", section))
    for fields in (read, idle, idle["update"], parameters, parameters["metrics"][0]):
        assert set(fields) <= documented


def test_csv(tmp_path, steps):
    report.write_comparison(steps, tmp_path / "c.csv")
    with (tmp_path / "c.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["step"], row["tensor"]) for row in rows] == [
        (step, name) for step in "01" for name in ("parameters", "accum", "stat")]
    assert rows[0]["differing"] == "0"
    assert int(rows[3]["differing"]) > 5
    assert rows[3]["mixed tolerance"] == "passes"
    assert set(metrics.NAMES) <= set(rows[0])


def test_html(tmp_path, steps):
    path = tmp_path / "c.html"
    report.write_comparison(steps, path, subject="<b>dump</b>", sentences=["<i>nothing moves</i>"])
    text = path.read_text(encoding="utf-8")
    assert verdict(steps) in html.unescape(text)
    assert text.index("Step 1: differs") < text.index("Step 0: the same")
    assert "&lt;i&gt;nothing moves&lt;/i&gt;" in text
    assert "<b>" not in text
    assert "✓ passes" in text
    assert "✗ differs" in text
    done = chromium(tmp_path, path, "--dump-dom", "--enable-logging=stderr")
    assert not console(done.stderr)
    assert done.stdout.count("<svg") == 6


def test_what_is_missing_or_too_much_is_said(tmp_path, steps):
    odd = steps[0]._replace(missing=["stat"], unexpected=["momentum_buffer"], gradient_differing=3)
    report.write_comparison([odd], tmp_path / "c.html")
    text = (tmp_path / "c.html").read_text()
    for part in ("not judged: stat", "makes none: momentum_buffer", "changed in 3 elements", "✗ "):
        assert part in text


def test_many_steps_are_limited(tmp_path, steps):
    report.write_comparison([steps[0]._replace(step=k) for k in range(150)] + steps[1:], tmp_path / "c.html")
    text = (tmp_path / "c.html").read_text()
    assert "100 of 151 steps are shown" in text
    assert text.count("<h2>Step ") == 100
    assert "Step 1: differs" in text


def test_an_unknown_suffix_is_refused(tmp_path, steps):
    with pytest.raises(ValueError, match=r"\.html, \.json or \.csv"):
        report.write_comparison(steps, tmp_path / "c.txt")
    assert not list(tmp_path.iterdir())
