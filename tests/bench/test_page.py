"""The page: complete in itself, safe, and the same figures as in the file."""

from __future__ import annotations

import copy
import html
import json
import re
import sys
from xml.etree.ElementTree import fromstring

import numpy as np
import pytest

from bench import made_up
from samestep.bench import page, plots
from samestep.bench.inline_svg import inline
from verify.browser import chromium, console, dom

RESULTS = made_up.results()
HOSTILE = "<script>document.title='owned'</script>\"' onload='x <img src=x onerror=alert(1)> \x00\x1b[31m &amp;"
SVG = ('<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="720pt" '
       'height="360pt" viewBox="0 0 720 360"><metadata>x</metadata><defs><path id="m1" style="stroke: #1f2933"/></defs>'
       '<g clip-path="url(#p2)"><use xlink:href="#m1" style="fill: #ffffff; stroke: #0072b2"/></g>'
       '<text style="fill: #52606d">#1 of all</text></svg>')


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The page with all its pictures."""
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    folder = tmp_path_factory.mktemp("page")
    paths = page.write(RESULTS, folder)
    assert [path.name for path in paths] == ["index.html", *(f"{name}.{suffix}" for name in plots.PICTURES
                                                            for suffix in ("svg", "png"))]
    return folder / "index.html"


def plain(results, pictures=None):
    return page.as_html(results, pictures or {})


def test_it_loads_nothing_and_no_id_stands_twice(written):
    text = written.read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    without = re.sub(r"(?m)^// .*$", "", text)
    assert not re.search(r"https?:|@import|\bsrc=|<link|url\((?!#)|href=\"(?!#)", without)
    ids = re.findall(r'\bid="(.*?)"', text)
    assert len(ids) == len(set(ids)) > 100
    for used in set(re.findall(r'(?:href="|url\()#(.*?)["\)]', text)):
        assert used in ids
    assert text.count("<svg") == 4
    assert "xmlns" not in text


def test_a_picture_takes_the_colours_of_the_page():
    drawn = inline(SVG, "strip", "what it shows")
    assert drawn.tag == "svg"
    assert drawn.find("metadata") is None
    assert drawn.get("aria-label") == "what it shows"
    assert [part.get("id") for part in drawn.iter() if part.get("id")] == ["strip-m1"]
    use = next(drawn.iter("use"))
    assert use.attrib == {"href": "#strip-m1", "style": "fill: var(--panel); stroke: #0072b2"}
    assert drawn.find("g").get("clip-path") == "url(#strip-p2)"
    assert drawn.find("text").text == "#1 of all"
    assert drawn.find("text").get("style") == "fill: var(--soft)"


def test_no_drawn_colour_of_the_paper_or_the_ink_is_left(written):
    text = written.read_text(encoding="utf-8")
    pictures = "".join(re.findall("<svg.*?</svg>", text, re.DOTALL))
    assert not re.search("#ffffff|#1f2933|#52606d|#e4e7eb", pictures)
    assert {"var(--ink)", "var(--soft)", "var(--line)", "var(--panel)"} <= set(re.findall(r"var\(.*?\)", pictures))
    for svg in re.findall("<svg.*?</svg>", text, re.DOTALL):
        fromstring(svg)


def test_it_says_what_matters():
    text = html.unescape(re.sub("<.*?>", " ", plain(RESULTS)))
    counts = [sum(case["verdict"] == verdict for run in RESULTS["runs"] for case in run["cases"])
              for verdict in ("faster", "tie", "slower")]
    assert f"✗ faster in {counts[0]} of 400 timed cases, {counts[1]} ties, {counts[2]} slower" in text
    call = next(cost for cost in RESULTS["startup"] if cost["unit"] == "us")
    for part in ("AMD EPYC 9R14, 2 cores, L1 32 KiB, L2 1 MiB, L3 32 MiB", "torch 2.13.0", "in 13.5 minutes",
                 "1 thread: 200 cases; 2 threads: 200 cases", "torch for-loop (optimizer)", "by up to 44 ULPs",
                 "not installed: pip install mindspore", "420 ns a tensor", "at most 450 ns a tensor",
                 "jax and optax not installed", f"{call['median']:.2f} µs",
                 f"Slower cases: {counts[2]}", f"Ties: {counts[1]}"):
        assert part in text, part
    for run in RESULTS["runs"]:
        for case in run["cases"]:
            if case["verdict"] != "faster":
                assert f"{case['name']}, {run['threads']} thread" in text


def test_every_case_is_a_row_with_its_figures():
    text = plain(RESULTS)
    rows = re.findall("<tr>.*?</tr>", text.split('id="cases"')[1])[1:]
    cases = [(run["threads"], case) for run in RESULTS["runs"] for case in run["cases"]]
    assert len(rows) == len(cases) == 400
    for row, (threads, case) in zip(rows, cases, strict=True):
        assert f"<td>{case['name']}</td>" in row
        values = re.findall('data-value="(.*?)"', row)
        default = case["ratios"]["torch eager" if case["suite"] == "op" else "torch for-loop"]["median"]
        assert values == [str(value) for value in (
            threads, case["tensors"], case["elements"], case["times"]["samestep"]["median"], case["ratio"],
            case["low"], default, case["ratios"]["limit"]["median"])]
        assert ("torch fused</td>" in row.split(case["verdict"])[1]) == (
            case["suite"] == "optim" and case["dtype"] == "bfloat16")


def test_all_faster_is_green_and_a_quick_run_says_so():
    results = copy.deepcopy(RESULTS)
    for run in results["runs"]:
        run["cases"] = [case for case in run["cases"] if case["verdict"] == "faster"]
    text = plain({**results, "quick": True})
    assert 'class="verdict good"' in text
    assert "(--quick: few cases and rounds)" in text
    assert 'id="ended-tie"' not in text


def test_a_file_without_cases():
    results = {**RESULTS, "runs": [{"threads": 1, "cases": [], "skipped": {"op x": "too large"}}], "scaling": [],
               "startup": [], "left out": {"start-up": "the process hangs"}}
    text = plain(results)
    assert 'class="verdict bad"' in text
    assert "Without a result: 2" in text
    assert "start-up: the process hangs" in text
    assert "op x, 1 thread: too large" in text


def test_a_nan_against_a_number_is_said():
    results = copy.deepcopy(RESULTS)
    case = next(case for case in results["runs"][0]["cases"] if case["suite"] == "op")
    case["grades"]["JAX"] = {"grade": "wrong", "differing": 1, "checked": 7, "ulps": "inf"}
    assert "float32: 1 of 7 compared elements differ; a NaN stands against a number" in plain(results)


def test_hostile_text_stays_text():
    results = copy.deepcopy(RESULTS)
    case = results["runs"][0]["cases"][0]
    for name in ("name", "dtype", "shape"):
        case[name] = HOSTILE
    case |= {"verdict": "tie", "left out": {HOSTILE: HOSTILE}}
    case["grades"][HOSTILE] = {"grade": "wrong", "differing": 1, "checked": 2, "ulps": 3.0}
    results["machine"]["processor"] = results["versions"]["torch"] = results["startup"][0]["name"] = HOSTILE
    text = plain(results)
    assert "<script>document" not in text
    assert "<img" not in text
    assert "onload='x" not in re.sub(">[^<]*<", "><", text)
    assert "\x00" not in text
    assert "\x1b" not in text


def test_without_matplotlib_there_is_a_page_without_pictures(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert page.write(RESULTS, tmp_path) == [tmp_path / "index.html"]
    assert "<svg" not in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_in_a_browser_clicks_sort_and_only_boxes_scroll_sideways(tmp_path, written):
    probe = (
        "const table = document.querySelector('#cases'); const seen = {};"
        "const column = (k) => [...table.tBodies].map((body) => body.rows[0].cells[k].textContent);"
        "const buttons = table.querySelectorAll('thead button');"
        "buttons[6].click(); seen.ratios = column(6).map(Number); buttons[6].click(); seen.down = column(6)[0];"
        "buttons[0].click(); seen.names = column(0);"
        "document.documentElement.style.width = '360px';"
        "seen.out = [...document.querySelectorAll('main, main *:not(.scroll *)')].filter("
        "(part) => part.getBoundingClientRect().right > 360).map((part) => part.outerHTML.slice(0, 80));"
        "seen.svg = [...document.querySelectorAll('svg')].map((svg) => svg.getBoundingClientRect().width);"
        "document.body.dataset.seen = JSON.stringify(seen)")
    shown, complaints = dom(tmp_path, written, probe)
    seen = json.loads(html.unescape(re.search('data-seen="(.*?)"', shown)[1]))
    ratios = [case["ratio"] for run in RESULTS["runs"] for case in run["cases"]]
    assert len(seen["ratios"]) == 400
    assert seen["ratios"] == sorted(seen["ratios"])
    assert float(seen["down"]) == pytest.approx(max(ratios), abs=0.005)
    assert seen["names"][0] == seen["names"][1]
    assert seen["out"] == []
    assert all(width > 650 for width in seen["svg"])  # legible, in a box that scrolls
    assert not complaints


@pytest.mark.parametrize(("scheme", "bright"), [(1, True), (0, False)], ids=["light", "dark"])
def test_pictures_are_light_or_dark_as_the_page(tmp_path, written, scheme, bright):
    image = pytest.importorskip("matplotlib.image")
    done = chromium(tmp_path, written, f"--blink-settings=preferredColorScheme={scheme}", "--window-size=1200,2600",
                    f"--screenshot={tmp_path / 'shot.png'}", "--enable-logging=stderr")
    brightness = image.imread(tmp_path / "shot.png")[1200:2500, 200:1000, :3].mean(axis=2)  # pictures only
    assert (np.median(brightness) > 0.8) == bright
    assert (np.median(brightness) < 0.3) != bright
    assert np.ptp(brightness) > 0.5  # something is drawn
    assert not console(done.stderr)
