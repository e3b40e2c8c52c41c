"""Reports: complete for programs, readable and safe for people."""

from __future__ import annotations

import csv
import html
import json
import math
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from samestep.verify.observation import Observation, Problem
from samestep.verify.report import writing as report
from samestep.verify.report.histogram import bin_names, histogram
from samestep.verify.report.page import ROWS
from samestep.verify.suite.results import BINS, Check, Failure, Results
from verify.browser import chromium, console, dom

HOSTILE = ("<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
           "' onclick='x \" onclick=\"x \x00\x1b[31m\ud800 &amp;")


def words(*patterns):
    return np.array(patterns, np.uint16)


PROBLEM = Problem("bfloat16", (1,), words(0x3F80), words(0x3C23), words(0x3DCD), words(0x8000), math.nan, 0.9,
                  weight_decay=0.01, nesterov=True)


def failing(name, found=1, ulps=1.0, rule="O5", problem=PROBLEM, message="parameters: differs"):
    observed = problem and Observation(problem, words(0x1234), words(0x5678), problem.stat and words(0x9ABC))
    failure = Failure("parameters", found * 37 % 100, 0x3F80, 0x3F80 + found, "bfloat16", ulps, found, problem,
                      observed)
    return Check(name, "specials", rule, "bfloat16", False, 1000, message, failure, ulps)


def results(checks, subject="kernel:sgd", histogram=None, sentences=None):
    counts = histogram or {("bfloat16", "parameters"): [900_000, 1200, 300, 20, 1, 0, 0, 2]}
    return Results(subject, "cann", "spec", "quick", 7, 1.5, {"samestep": "0.1", "numpy": "2.4"}, checks, counts,
                   sentences or {})


MIXED = results(
    [Check("mask/float32/0", "mask", "O6", "float32", True, 50), failing("specials/b", 10, 3.0),
     failing("specials/a", 9, math.inf),
     failing("specials/c", 100, 20.0, problem=PROBLEM._replace(rule="torch", stat=None)),
     Check("refused/rank", "refusals", "O2", "", False, message="no refusal came")],
    sentences={"bfloat16": "parameters follow `spec` with the dampening ignored"},
)
HOSTILE_RESULTS = results([failing(HOSTILE, message=HOSTILE)._replace(family=HOSTILE, rule=HOSTILE)], HOSTILE,
                          {(HOSTILE, HOSTILE): [1] * 8}, {HOSTILE: HOSTILE})


@pytest.fixture
def mixed(tmp_path):
    path = tmp_path / "mixed.html"
    report.write(MIXED, path)
    return path


def test_an_unknown_suffix_is_refused_before_anything_is_written(tmp_path):
    for call in (lambda path: report.write(MIXED, path), report.check_suffix):
        with pytest.raises(ValueError, match=r"got the suffix '\.pdf'; accepted: \.html, \.json or \.csv"):
            call(tmp_path / "report.pdf")
    assert not list(tmp_path.iterdir())
    report.check_suffix(tmp_path / "REPORT.HTML")


def test_json_holds_everything_and_reads_back_the_same(tmp_path):
    report.write(MIXED, tmp_path / "r.json")
    read = json.loads((tmp_path / "r.json").read_text(), parse_constant=pytest.fail)
    assert read["subject"] == "kernel:sgd"
    assert (read["checks_total"], read["checks_failed"]) == (5, 4)
    assert read["histogram"] == [{"dtype": "bfloat16", "tensor": "parameters",
                                  "counts": [900_000, 1200, 300, 20, 1, 0, 0, 2]}]
    assert read["bins"] == [*BINS, "inf"]
    assert [check["name"] for check in read["checks"]] == [check.name for check in MIXED.checks]
    failure = read["checks"][2]["failure"]
    assert (failure["expected"], failure["got"], failure["ulps"]) == ("0x3f80", "0x3f89", "inf")
    assert failure["problem"]["stat"] == ["0x8000"]
    assert failure["problem"]["learning_rate"] == "nan"
    assert failure["observed"] == {"parameters": ["0x1234"], "accum": ["0x5678"], "stat": ["0x9abc"]}
    assert read["checks"][3]["failure"]["problem"]["stat"] is None
    assert read["checks"][0]["failure"] is None


def test_json_fields_are_those_of_the_documentation(tmp_path):
    report.write(MIXED, tmp_path / "r.json")
    read = json.loads((tmp_path / "r.json").read_text())
    section = (Path(__file__).parents[2] / "docs" / "verify.md").read_text().partition("### report.json")[2]
    documented = set(re.findall(r"`(\w+)`", section.partition("\n#")[0]))
    check = read["checks"][1]
    for fields in (read, check, check["failure"], check["failure"]["problem"], check["failure"]["observed"],
                   read["histogram"][0]):
        assert set(fields) <= documented


def test_csv_has_one_row_a_check(tmp_path):
    report.write(MIXED, tmp_path / "r.csv")
    with (tmp_path / "r.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == [check.name for check in MIXED.checks]
    assert [row["passed"] for row in rows] == ["yes", "no", "no", "no", "no"]
    assert (rows[1]["expected"], rows[1]["got"], rows[1]["found"], rows[1]["ulps"]) == ("0x3f80", "0x3f8a", "10", "3.0")
    assert rows[4]["message"] == "no refusal came"


@pytest.mark.parametrize("suffix", [".html", ".json", ".csv"])
def test_hostile_text_is_text(tmp_path, suffix):
    path = tmp_path / f"hostile{suffix}"
    report.write(HOSTILE_RESULTS, path)
    text = path.read_text(encoding="utf-8")
    assert "\x00" not in text
    assert "\x1b" not in text
    if suffix == ".html":
        tags = []
        parser = HTMLParser()
        parser.handle_starttag = lambda tag, attributes: tags.append((tag, {name for name, _ in attributes}))
        parser.feed(text)
        assert [tag for tag, _ in tags].count("script") == 1
        assert not [tag for tag, attributes in tags if tag == "img" or "onclick" in attributes]
        assert "&lt;script&gt;" in text
        assert "&amp;amp;" in text


def test_hostile_text_does_not_run(tmp_path):
    path = tmp_path / "hostile.html"
    report.write(HOSTILE_RESULTS, path)
    shown, complaints = dom(tmp_path, path, "document.body.dataset.images = document.images.length")
    assert 'data-images="0"' in shown
    assert "<title>samestep verify: &lt;script&gt;" in shown
    assert not complaints


def test_a_complaint_of_the_console_would_be_seen(tmp_path, mixed):
    """What the other tests rely on; here the policy's hash is that of another script, so the script may not run."""
    broken = tmp_path / "broken.html"
    broken.write_text(mixed.read_text(encoding="utf-8").replace("beforeprint", "before"), encoding="utf-8")
    assert console(chromium(tmp_path, broken, "--dump-dom", "--enable-logging=stderr").stderr)


def test_html_loads_nothing(mixed):
    text = mixed.read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert not re.search(r"https?:|//|@import|url\(|\bsrc=|<link|\bhref=", re.sub(r"(?m)^// .*$", "", text))


def test_html_says_what_matters(mixed):
    text = mixed.read_text(encoding="utf-8")
    for part in ("4 of 5 checks failed", "parameters follow `spec` with the dampening ignored", "3 of 3 failed",
                 "1 passed", "no refusal came", "0x3f80", "1.07031", "nesterov=True", "momentum_buffer", "0x1234",
                 "0x0000", "0x9abc"):
        assert part in text


def test_passes_are_not_listed_and_failures_are_limited(tmp_path):
    passes = [Check(f"pass/{k}", "tails", "O8", "float32", True, 100) for k in range(99_000)]
    fails = [failing(f"fail/{k}", problem=None) for k in range(999)]
    path = tmp_path / "large.html"
    start = time.process_time()
    report.write(results([*passes, *fails, failing("lonely", rule="O6")]), path)
    assert time.process_time() - start < 5
    text = path.read_text(encoding="utf-8")
    assert path.stat().st_size < 1_000_000
    assert "pass/" not in text
    assert "99,000 passed" in text
    assert f"{ROWS:,} of 1,000 are listed" in text
    assert text.count("fail/") == ROWS - 1
    assert "lonely" in text


def test_all_green(tmp_path):
    path = tmp_path / "green.html"
    check = Check("a", "mask", "O6", "float32", True, 50)
    report.write(results([check], histogram={("float32", "stat"): [0] * 8}), path)
    text = path.read_text(encoding="utf-8")
    assert "All checks passed: 1, with 50 elements judged" in text
    assert 'id="failures"' not in text
    assert "<svg" not in text


# For each header that is clicked in turn: the texts of its column afterwards, and the order that aria-sort tells.
CLICKS = [
    (0, ["refused/rank", "specials/a", "specials/b", "specials/c"], "ascending"),
    (0, ["specials/c", "specials/b", "specials/a", "refused/rank"], "descending"),
    (4, ["-", "9", "10", "100"], "ascending"),
    (5, ["-", "3", "20", "NaN"], "ascending"),
    (5, ["NaN", "20", "3", "-"], "descending"),
    (7, ["-", "0x3f89 1.07031", "0x3f8a 1.07812", "0x3fe4 1.78125"], "ascending"),
]


def test_a_click_sorts(tmp_path, mixed):
    probe = ("const table = document.querySelector('#failures');"
             f"document.body.dataset.seen = JSON.stringify({[header for header, _, _ in CLICKS]}.map((header) => {{"
             "table.querySelectorAll('thead button')[header].click();"
             "return {cells: [...table.tBodies].map((body) => body.rows[0].cells[header].textContent),"
             "rows: [...table.tBodies].map((body) => body.rows.length),"
             "sorts: [...table.tHead.rows[0].cells].map((cell) => cell.getAttribute('aria-sort'))}}))")
    shown, complaints = dom(tmp_path, mixed, probe)
    seen = json.loads(html.unescape(re.search('data-seen="(.*?)"', shown)[1]))
    for (header, expected, kind), after in zip(CLICKS, seen, strict=True):
        assert after["cells"] == expected
        assert after["rows"] == [2] * 4
        assert after["sorts"] == ["none"] * header + [kind] + ["none"] * (7 - header)
    assert not complaints


def test_headers_can_be_reached_by_keyboard(tmp_path, mixed):
    shown, _ = dom(tmp_path, mixed, "const b = document.querySelectorAll('#failures th button')[5]; b.focus();"
                   "document.body.dataset.focused = [document.activeElement === b, b.tabIndex]")
    assert 'data-focused="true,0"' in shown


def test_on_a_phone_only_tables_scroll_sideways(tmp_path, mixed):
    """No window is so narrow, so the page is: everything outside the tables' boxes ends where it does."""
    shown, _ = dom(tmp_path, mixed, "document.documentElement.style.width = '360px';"
                   "const out = [...document.querySelectorAll('main, main *:not(.scroll *)')].filter("
                   "(part) => part.getBoundingClientRect().right > 360);"
                   "document.body.dataset.out = [out.length, document.querySelector('#failures').offsetWidth > 360]")
    assert 'data-out="0,true"' in shown, re.findall("data-out=.*?>", shown)


def pixels(path):
    """Share of the commonest colour, and the brightness of the corner, of a PNG."""
    matplotlib = pytest.importorskip("matplotlib.image")
    picture = matplotlib.imread(path)[..., :3]
    _, counts = np.unique(picture.reshape(-1, 3) @ np.array([65536, 256, 1], np.float32), return_counts=True)
    return counts.max() / counts.sum(), picture[2, 2].mean()


@pytest.mark.parametrize(("scheme", "bright", "width"), [(1, True, 1200), (0, False, 390)], ids=["light", "dark"])
def test_pictures_light_and_dark(tmp_path, mixed, scheme, bright, width):
    done = chromium(tmp_path, mixed, f"--blink-settings=preferredColorScheme={scheme}", f"--window-size={width},1400",
                    f"--screenshot={tmp_path / 'shot.png'}", "--enable-logging=stderr")
    empty, corner = pixels(tmp_path / "shot.png")
    assert 0.4 < empty < 0.97
    assert (corner > 0.9) == bright
    assert (corner < 0.2) != bright
    assert not console(done.stderr)


def test_bars_are_as_high_as_the_logarithm_of_their_counts():
    figure = histogram("float32 accum", [1000, 10, 0, 0, 0, 0, 0, 1])
    heights = [float(bar.get("height")) for bar in figure.iter("rect")]
    assert len(heights) == 3
    assert heights[0] - heights[1] == pytest.approx(2 * (heights[1] - heights[2]), abs=0.2)
    assert heights[2] > 5
    assert figure.find("svg").get("aria-label") == "float32 accum: 1,000 at 0 ULP, 10 at 1 ULP, 1 at more ULP"
    assert bin_names() == ["0", "1", "2", "≤4", "≤16", "≤256", "≤65536", "more"]


def test_counts_on_bars_are_short():
    figure = histogram("x", [123_456_789, 9_999, 10_000, 999_999, 1_500_000, 7, 12_345_678_901, 0])
    shown = [text.text for text in figure.iter("text") if text.get("class") == "count"]
    assert shown == ["123.4M", "9,999", "10k", "999k", "1.5M", "7", "12.3G"]
