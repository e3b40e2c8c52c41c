"""The pictures: what is drawn is what was measured, nothing lies on anything else, and files come out the same."""

from __future__ import annotations

import copy
import functools
import itertools
import re
import sys

import pytest

from bench import made_up
from samestep.bench import drawing, plots, plots_times

matplotlib = pytest.importorskip("matplotlib", reason="pictures need matplotlib")
backend_agg = pytest.importorskip("matplotlib.backends.backend_agg")
RESULTS = made_up.results()
NAMES = list(plots.PICTURES)


def only(keep, threads=(1, 2), results=RESULTS):
    """The results with fewer cases and thread counts."""
    return {**results,
            "runs": [{**run, "cases": [case for case in run["cases"] if keep(case)]} for run in results["runs"]
                     if run["threads"] in threads],
            "scaling": [line for line in results["scaling"] if line["threads"] in threads]}


VARIANTS = {
    "all": RESULTS,
    "one thread": only(lambda case: True, (1,)),
    "operator": only(lambda case: case["suite"] == "op"),
    "quick": only(lambda case: case["shape"] in ("64", "65,537", "1000 x 64")),
    "one case": only(lambda case: case is RESULTS["runs"][1]["cases"][150], (2,)),
}


@functools.cache
def drawn(name, variant="all"):
    """A picture, and every text of it that shows with where it is in pixels."""
    figure = plots.PICTURES[name](VARIANTS[variant])
    return figure, texts(figure)


def texts(figure):
    backend_agg.FigureCanvasAgg(figure).draw()
    found = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    for axes in figure.axes:
        if axes.axison:
            found += [axes._left_title, axes.xaxis.label, axes.yaxis.label]
            for axis in (axes.xaxis, axes.yaxis):
                low, high = sorted(axis.get_view_interval())
                found += [label for at, label in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
                          if low <= at <= high]
        found += axes.texts
    return {text: text.get_window_extent().padded(-1) for text in found if text.get_text() and text.get_visible()}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", NAMES)
def test_no_text_lies_on_another_or_outside(name, variant):
    figure, places = drawn(name, variant)
    assert len(places) > 5
    for text, box in places.items():
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1, text
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1, text
    for (one, box), (other, beside) in itertools.combinations(places.items(), 2):
        assert not box.overlaps(beside), (one.get_text(), other.get_text())
    for axes in figure.axes:
        if axes.axison:  # nothing covers data
            assert not [text for text, box in places.items() if axes.bbox.overlaps(box)]


def test_texts_are_legible_at_800_pixels():
    for name in NAMES:
        figure, places = drawn(name)
        scale = 800 / (72 * figure.get_size_inches()[0])  # pixels a point
        assert min(text.get_size() * scale for text in places) >= 10


def test_the_strip_shows_every_case_in_the_colour_of_its_verdict():
    figure, _ = drawn("ratios")
    for axes, run in zip(figure.axes, RESULTS["runs"], strict=True):
        seen = {}
        for container in axes.containers:
            line, _, bars = container
            for (x, y), bar in zip(line.get_xydata(), bars[0].get_segments(), strict=True):
                seen[round(x)] = (y, bar[0][1], bar[1][1], line.get_color(), line.get_marker())
        cases = sorted(run["cases"], key=lambda case: case["ratio"])
        assert len(seen) == 200
        for place, case in enumerate(cases):
            *interval, color, marker = seen[place]
            assert interval == pytest.approx([case["ratio"], case["low"], case["high"]])
            assert color == drawing.VERDICTS[case["verdict"]]
            assert marker == {"op": "o", "optim": "s"}[case["suite"]]
        shown = [text.get_text() for text in axes.texts]
        for place in (1, 2, 3):
            assert f"{cases[-place]['name']}: {cases[-place]['ratio']:.2f} of " in shown[place - 1]
    assert len(set(drawing.VERDICTS.values())) == 3


def test_the_roofline_shows_bytes_per_second():
    case = copy.deepcopy(next(case for case in RESULTS["runs"][0]["cases"] if case["tensors"] == 1))
    case |= {"bytes": 1_000_000, "best": "NumPy"}
    for name, seconds in (("samestep", 1e-4), ("NumPy", 2e-4), ("torch eager", 4e-4), ("limit", 5e-5)):
        case["times"][name] = {"median": seconds}
    figure = plots_times.roofline({**RESULTS, "runs": [{"threads": 1, "cases": [case]}]})
    rates = {line.get_color(): line.get_ydata()[0] for line in figure.axes[0].lines if len(line.get_ydata())}
    assert rates == pytest.approx({drawing.OURS: 10, drawing.THEIRS: 5, drawing.DEFAULT: 2.5, drawing.LIMIT: 20})


def test_the_scaling_shows_the_fit_and_its_cost():
    figure, _ = drawn("scaling")
    line = RESULTS["scaling"][0]
    curve = figure.axes[0].lines[1]
    assert curve.get_ydata()[-1] == pytest.approx(line["fit"]["fixed"] + line["fit"]["slope"] * 100_000)
    assert "420 ns a tensor + 8.00 µs; off by ≤ 4.0 %" in [text.get_text() for text in figure.axes[-1].texts]


def test_wrong_peers_are_marked():
    figure, _ = drawn("peers")
    labels = [label.get_text() for axes in figure.axes for label in axes.get_yticklabels()]
    assert "torch fused\n27 of 100 wrong" in labels
    assert sum("wrong" in label for label in labels) == 1
    place = [label.get_text() for label in figure.axes[1].get_yticklabels()].index("torch fused\n27 of 100 wrong")
    right, wrong = figure.axes[1].collections[2 * place:2 * place + 2]
    assert (len(right.get_offsets()), len(wrong.get_offsets())) == (73, 27)
    assert matplotlib.colors.to_hex(wrong.get_facecolor()[0]) == drawing.THEIRS
    assert "limit" not in labels


def test_what_is_written(tmp_path):
    written = plots.write(RESULTS, tmp_path)
    assert written == [tmp_path / f"{name}.{suffix}" for name in NAMES for suffix in ("svg", "png")]
    for path in written:
        if path.suffix == ".png":
            assert path.read_bytes()[16:20] == (1600).to_bytes(4, "big")
    text = (tmp_path / "ratios.svg").read_text(encoding="utf-8")
    assert "the slowest, from the right:" in re.sub("<.*?>", "", text)  # text stays text
    again = plots.as_svg(plots.PICTURES["ratios"](RESULTS))
    assert again == text
    assert "2026" not in text


def test_a_picture_without_data_is_left_out(tmp_path):
    assert plots.write({**RESULTS, "runs": [{"threads": 1, "cases": []}], "scaling": []}, tmp_path) == []
    assert plots_times.scaling({**RESULTS, "scaling": []}) is None
    assert plots_times.scaling({**RESULTS, "runs": []}) is not None


def test_without_matplotlib_the_command_that_installs_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(plots.MissingError, match="pip install matplotlib"):
        plots.write(RESULTS, tmp_path)
    assert not list(tmp_path.iterdir())
