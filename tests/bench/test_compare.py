"""--compare: what moved beyond noise, and which files are refused."""

from __future__ import annotations

import copy
import io
import json
import math
import os

import pytest
from rich.console import Console

from bench import made_up
from samestep.bench import reading
from samestep.bench.compare import ROWS, circumstances, compare, show

BEFORE = made_up.results()
COLUMNS = ("time", "to the limit", "to the best peer")


def shown(before, after, every=False):
    file = io.StringIO()
    show(Console(file=file, width=140, highlight=False), before, after, every)
    return file.getvalue()


def changed(**fields):
    """The results with one case whose fields are others: its figures, and what of them moves."""
    after = copy.deepcopy(BEFORE)
    after["runs"][1]["cases"][7].update(fields)
    return [(change.threads, change.case, change.what) for change in compare(BEFORE, after)]


CASE = BEFORE["runs"][1]["cases"][7]
KEY = (2, CASE["name"])


def test_the_same_file_twice():
    assert compare(BEFORE, copy.deepcopy(BEFORE)) == []
    assert circumstances(BEFORE, BEFORE) == []
    assert shown(BEFORE, BEFORE).startswith("0 of 1,200 figures of 400 cases moved beyond noise")


def test_noise_alone_moves_as_few_figures_as_chance_may():
    moved = [change for change in compare(BEFORE, made_up.results(seed=1)) if change.before is not None]
    assert len(moved) < 1200 / 50


def test_a_tenth_more_time_is_seen():
    changes = compare(BEFORE, made_up.results(seed=1, slower=1.1))
    for what in ("to the limit", "to the best peer"):
        moved = [change for change in changes if change.what == what]
        assert len(moved) > 300
        assert all(change.factor > 1 for change in moved)
        factors = [abs(math.log(change.factor)) for change in moved]
        assert factors == sorted(factors, reverse=True)  # the largest first
        assert math.exp(sum(factors) / len(factors)) == pytest.approx(1.1, abs=0.02)


def test_intervals_that_touch_have_not_moved():
    low, high, width = CASE["low"], CASE["high"], CASE["high"] - CASE["low"]
    assert changed(low=high, ratio=high + width, high=high + 2 * width) == []
    assert changed(low=high * 1.0001, ratio=high + width, high=high + 2 * width) == [(*KEY, "to the best peer")]
    assert changed(low=low - 2 * width, ratio=low - width, high=low) == []
    assert changed(low=low - 2 * width, ratio=low - width, high=low * 0.9999) == [(*KEY, "to the best peer")]


def test_times_and_the_limit_are_compared_too():
    time, limit = CASE["times"]["samestep"], CASE["ratios"]["limit"]
    faster = {"median": time["p10"] * 0.9, "p10": time["p10"] * 0.8, "p90": time["p10"] * 0.99}
    assert changed(times={**CASE["times"], "samestep": faster}) == [(*KEY, "time")]
    apart = {**limit, "median": 2 * limit["high"], "low": 1.5 * limit["high"], "high": 3 * limit["high"]}
    assert changed(ratios={**CASE["ratios"], "limit": apart}) == [(*KEY, "to the limit")]
    assert changed(ratios={name: ratio for name, ratio in CASE["ratios"].items() if name != "limit"}) == []


def test_another_best_peer_is_named():
    after = copy.deepcopy(BEFORE)
    after["runs"][1]["cases"][7].update(best="JAX", low=5.0, ratio=6.0, high=7.0)
    [change] = compare(BEFORE, after)
    assert change.about == f"{CASE['best']}, then JAX"
    assert change.after.median == 6.0
    assert "(5.00 .. 7.00)" in shown(BEFORE, after)


def test_new_and_missing_cases_and_grades():
    after = copy.deepcopy(BEFORE)
    gone = after["runs"][0]["cases"].pop(3)
    after["runs"][1]["cases"].append({**copy.deepcopy(CASE), "name": "op float32 K9 [new]"})
    after["runs"][1]["cases"][7]["grades"]["NumPy"] = {"grade": "wrong", "differing": 1, "checked": 7, "ulps": 9.0}
    changes = compare(BEFORE, after)
    assert [(change.threads, change.case, change.what, change.about) for change in changes] == [
        (*KEY, "grade", "NumPy: same bits, then wrong"), (2, "op float32 K9 [new]", "new", ""),
        (1, gone["name"], "missing", "")]
    text = shown(BEFORE, after)
    assert f"{CASE['name']}, 2 threads; NumPy: same bits, then wrong" in text
    assert "New cases: 1\n  op float32 K9 [new], 2 threads\n" in text
    assert f"Missing cases: 1\n  {gone['name']}, 1 thread\n" in text


def test_other_circumstances_are_said_first():
    after = made_up.results(quick=True)
    after["versions"] |= {"torch": "2.14.0", "optax": "0.3"}
    del after["versions"]["jax"]
    after["machine"] |= {"processor": "Other", "caches": {"L2": 1 << 21}}
    assert circumstances(BEFORE, after) == [
        "processor: AMD EPYC 9R14, then Other", "caches: L1 32,768, L2 1,048,576, L3 33,554,432, then L2 2,097,152",
        "version of torch: 2.13.0, then 2.14.0", "version of jax: 0.10.2, then not there", "--quick: no, then yes",
        "version of optax: not there, then 0.3"]
    assert shown(BEFORE, after).startswith("The two files were not measured under the same circumstances:\n")


def test_no_file_writes_escape_sequences_to_the_terminal():
    after = copy.deepcopy(BEFORE)
    after["machine"]["processor"] = "\x1b[2J"
    after["runs"][1]["cases"][7] |= {"best": "JAX", "low": 5.0, "ratio": 6.0, "high": 7.0, "name": "\x1b[31m[red]"}
    before = copy.deepcopy(BEFORE)
    before["runs"][1]["cases"][7]["name"] = "\x1b[31m[red]"
    before["runs"][1]["cases"][8]["name"] = "\x1b[5m"
    text = shown(before, after)
    assert "\x1b" not in text
    assert all(part in text for part in ("\\x1b[2J", "\\x1b[31m[red]", "\\x1b[5m"))


def test_many_moves_are_cut_unless_all_are_asked_for():
    before, after = made_up.results(), made_up.results(slower=1.5)
    for results in (before, after):
        for run in results["runs"]:
            del run["cases"][20:]
    text = shown(before, after)
    moved = len([change for change in compare(before, after) if change.before is not None])
    assert f"... and {moved - ROWS:,} smaller moves; --all lists them" in text
    assert "time: 0 became less, 40 more" in text
    assert "--all" not in shown(before, after, every=True)


def test_what_a_run_writes_is_read(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(BEFORE), encoding="utf-8")
    assert reading.read(path) == BEFORE


@pytest.mark.parametrize(("content", "message"), [
    (b"", "is not JSON, or was cut short"),
    (json.dumps(BEFORE)[:5000].encode(), "is not JSON, or was cut short"),
    (b"\xff\xfe", "is not text in UTF-8"),
    (b"[" * 100_000, "nested too deep|not JSON"),
    (b"[]", 'has no field "schema"; accepted: a results.json that `samestep bench` wrote'),
    (b'{"tests": 3}', 'has no field "schema"'),
    (b'{"schema": 2}', "schema 2; this version reads schema 1"),
    (b'{"schema": true}', "schema True; this version reads schema 1"),
    (b'{"schema": 1}', 'it has no field "created"'),
    (b'{"schema": 1, "seconds": NaN}', "the number NaN"),
    (b'{"schema": 1, "seconds": ' + b"9" * 5000 + b"}", "is not JSON, or was cut short"),
], ids=range(11))
def test_files_that_are_no_results_are_refused(tmp_path, content, message):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(reading.ReadingError, match=message) as caught:
        reading.read(path)
    assert str(path) in str(caught.value)


def test_folders_devices_and_files_that_are_not_there(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path, message in ((tmp_path, "is no regular file"), (tmp_path / "fifo", "is no regular file"),
                          (tmp_path / "absent.json", r"cannot read .*: No such file")):
        with pytest.raises(reading.ReadingError, match=message):
            reading.read(path)


def test_a_file_too_large_is_not_read(tmp_path):
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(reading.LIMIT + 1)
    with pytest.raises(reading.ReadingError, match="more than 256 MiB"):
        reading.read(path)


PLACES = {  # where, and what is put there: what the message says
    ("runs",): ({}, "runs is {}; accepted: a list"),
    ("runs", 0): ([], r"runs\[0\] is \[\]; accepted: an object"),
    ("runs", 0, "threads"): (0, "above 0"),
    ("runs", 0, "skipped"): ({"a": 1}, "skipped.'a' is 1; accepted: text"),
    ("runs", 0, "cases", 3, "name"): (7, r"runs\[0\].cases\[3\].name is 7; accepted: text"),
    ("runs", 0, "cases", 3, "suite"): ("x", "accepted: op, optim"),
    ("runs", 0, "cases", 3, "bytes"): (0, "bytes is 0; accepted: a whole number above 0"),
    ("runs", 0, "cases", 3, "elements"): (1.5, "accepted: a whole number"),
    ("runs", 0, "cases", 3, "low"): ("1", "low is '1'; accepted: a number"),
    ("runs", 0, "cases", 3, "ratio"): (-1, "accepted: a number above 0"),
    ("runs", 0, "cases", 4, "ratio"): (1e-300, "accepted: a number above 0"),
    ("runs", 0, "cases", 3, "high"): (10**400, "accepted: a number"),
    ("runs", 0, "cases", 3, "verdict"): ("great", "accepted: faster, tie, slower"),
    ("runs", 0, "cases", 3, "best"): ("Nobody", "best is 'Nobody'; accepted: a peer"),
    ("runs", 0, "cases", 3, "times"): ({}, "best is"),
    ("runs", 0, "cases", 3, "times", "samestep", "p90"): (None, "p90 is None; accepted: a number"),
    ("runs", 0, "cases", 3, "grades", "samestep", "grade"): ("?", "accepted: same bits, rounding, wrong"),
    ("runs", 0, "cases", 3, "grades", "samestep", "ulps"): ([], r"ulps is \[\]"),
    ("runs", 0, "cases", 3, "left out"): ([], "left out is"),
    ("machine", "caches"): ({"L2": "big"}, "caches.'L2' is 'big'; accepted: a number"),
    ("versions",): (["torch"], r"versions is \['torch'\]; accepted: an object"),
    ("left out",): ({"start-up": 3}, "left out.'start-up' is 3; accepted: text"),
    ("quick",): (1, "accepted: true or false"),
    ("scaling", 0, "fit"): (3, "fit is 3; accepted: an object"),
    ("scaling", 0, "points", 0, "median"): (0, "accepted: a number above 0"),
    ("startup", 0, "unit"): ("h", "accepted: s, us"),
    ("startup", 0, "median"): ("1", "median is '1'"),
}


@pytest.mark.parametrize("place", PLACES, ids=lambda place: ".".join(map(str, place)))
def test_fields_that_are_something_else_are_refused_with_their_place(place):
    value, message = PLACES[place]
    results = {**BEFORE, place[0]: copy.deepcopy(BEFORE.get(place[0]))}
    part = results
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = value
    with pytest.raises(reading.ReadingError, match=message):
        reading.check(results)


def test_fields_that_are_missing_are_refused():
    for name in BEFORE:
        with pytest.raises(reading.ReadingError, match=f'has no field "{name}"'):
            reading.check({key: value for key, value in BEFORE.items() if key != name})
