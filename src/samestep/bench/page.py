"""The results as one HTML page that loads nothing else: what was found, pictures, and every case."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from samestep.bench import plots
from samestep.bench.drawing import shown_bytes
from samestep.bench.inline_svg import inline
from samestep.bench.summary import (
    DEFAULTS,
    TITLES,
    CaseResult,
    Results,
    counted,
    ended,
    geometric_mean,
    growth,
    is_wrong,
    means,
    ratio,
    shown_cost,
    shown_ratio,
    shown_time,
    skipped,
    suites,
    threads,
    to_default,
)
from samestep.verify.report import markup
from samestep.verify.report.markup import node, table

MEANING = (
    "Every ratio is samestep's time divided by another's for the same step on the same tensors: 0.5 means half the "
    "time, less than 1 is faster. It is taken round by round, all of them in turn within one process, and the median "
    "of the rounds is given.",
    "The best peer of a case is the fastest one whose results are not wrong. A case is faster or slower if the 95 % "
    "interval of its ratio, widened by what moves when tensors land elsewhere in memory, lies on one side of 1; "
    "otherwise it is a tie.",
    "The in-run limit is a plain loop over the same memory with the same reads and writes, timed in the same rounds. "
    "It does no step and can be beaten: by stores past the caches, or by starting on a cache line.",
    "Nothing is timed before its results were checked. Peers may round a little otherwise than the rule they follow; "
    "a peer that is further off is marked wrong, timed all the same, and never counts as the best.",
)
SENTENCES = {
    "roofline": "Small steps cost what a call costs; large ones what memory gives. Where samestep meets the dashed "
                "line, no step that moves the same bytes could be much faster.",
    "ratios": "Sorted by ratio. The vertical lines are 95 % intervals; most are shorter than the marks.",
    "peers": "Each mark is a case. Crosses are cases in which the peer's results are wrong, so it did less work, or "
             "other work.",
    "scaling": "Both axes are logarithmic, so a straight line of slope one is linear growth, and the flat start is "
               "the fixed cost of a step.",
}


def write(results: Results, folder: Path) -> list[Path]:
    """Write ``index.html`` and, where there is matplotlib, the pictures into `folder`; return what was written.

    Raises OSError.
    """
    try:
        written = plots.write(results, folder)
    except plots.MissingError:
        written = []
    pictures = {path.stem: path.read_text(encoding="utf-8") for path in written if path.suffix == ".svg"}
    path = folder / "index.html"
    path.write_text(as_html(results, pictures), encoding="utf-8", newline="")
    return [path, *written]


def as_html(results: Results, pictures: Mapping[str, str]) -> str:
    """The page; `pictures` are the SVG files of `plots.PICTURES` by name, those that there are."""
    return markup.page(
        "samestep bench", node("h1", "samestep bench"), _verdict(results), _facts(results), node("h2", "What it means"),
        *(node("p", text) for text in MEANING), *_means(results), *_pictures(pictures), *_ended(results),
        *_peers(results), *_growth(results), *_startup(results), *_cases(results))


def _verdict(results: Results) -> Element:
    counts = {verdict: len(ended(results, verdict)) for verdict in ("faster", "tie", "slower")}
    total = sum(counts.values())
    cases = [case for run in results["runs"] for case in run["cases"]]
    best, default = (geometric_mean(found) for found in ((case["ratio"] for case in cases), map(to_default, cases)))
    text = (f"faster in {counts['faster']:,} of {counted(total, 'timed case')}, {counted(counts['tie'], 'tie')}, "
            f"{counts['slower']:,} slower; geometric means {shown_ratio(best)} of the fastest correct peer's time, "
            f"{shown_ratio(default)} of torch's default")
    good = not counts["slower"] and total > 0
    return node("p", f"{'✓' if good else '✗'} {text}", class_=f"verdict {'good' if good else 'bad'}")


def _facts(results: Results) -> Element:
    machine = results["machine"]
    caches = ", ".join(f"{name} {shown_bytes(size)}" for name, size in machine["caches"].items())
    runs = "; ".join(f"{threads(run['threads'])}: {counted(len(run['cases']), 'case')}" for run in results["runs"])
    facts = {
        "Machine": f"{machine['processor']}, {machine['cores']} cores{f', {caches}' if caches else ''}",
        "System": machine["system"],
        "Versions": ", ".join(f"{name} {version}" for name, version in results["versions"].items()),
        "Measured": f"{results['created']}, in {results['seconds'] / 60:,.1f} minutes"
                    f"{' (--quick: few cases and rounds)' if results['quick'] else ''}",
        "Cases": runs,
    }
    return node("dl", *(part for name, text in facts.items() for part in (node("dt", name), node("dd", text))))


def _table(label: str, names: Sequence[str], rows: Sequence[Sequence[Element]], *, is_sorted: bool = False,
           **attributes: str) -> Element:
    """A table whose header cells are aligned as the cells beneath; with buttons that sort it where `is_sorted`."""
    kinds = [cell.get("class", "").split(" ")[0] for cell in rows[0]] if rows else [""] * len(names)
    if is_sorted:
        head = [node("th", node("button", name, type="button"), scope="col", aria_sort="none", class_=kind)
                for name, kind in zip(names, kinds, strict=True)]
        bodies = [node("tbody", node("tr", *row)) for row in rows]  # the page's script sorts bodies
    else:
        head = [node("th", name, scope="col", class_=kind) for name, kind in zip(names, kinds, strict=True)]
        bodies = [node("tbody", *(node("tr", *row) for row in rows))]
    return table(label, head, bodies, **attributes)


def _number(shown: str, value: float | None = None, kind: str = "") -> Element:
    """A cell aligned to the right that sorts by its value; None sorts last upwards."""
    return node("td", shown, class_=f"number {kind}".strip(), data_value="Infinity" if value is None else repr(value))


def _ratio(value: float | None) -> Element:
    return _number(shown_ratio(value), value)


def _means(results: Results) -> Iterator[Element]:
    rows = [[node("td", TITLES.get(each.suite, each.suite)), node("td", threads(each.threads)), _ratio(each.best),
             _ratio(each.default), _ratio(each.limit),
             *(_number(str(each.verdicts[verdict]), each.verdicts[verdict]) for verdict in ("faster", "tie", "slower"))]
            for each in means(results)]
    yield node("h2", "Geometric means")
    yield _table("Geometric means", ["Suite", "Threads", "Best peer", "torch's default", "In-run limit, steps ≥ 64 MiB",
                                     "Faster", "Tie", "Slower"], rows, id="means")
    yield node("p", f"torch's default: {', '.join(f'{name} ({TITLES[suite]})' for suite, name in DEFAULTS.items())}.",
               class_="soft")


def _pictures(pictures: Mapping[str, str]) -> Iterator[Element]:
    for name, svg in pictures.items():
        title = plots.TITLES[name]
        drawn = inline(svg, name, f"{title}. {SENTENCES[name]} The table of all cases holds the figures.")
        yield node("figure", node("div", drawn, class_="scroll", tabindex="0", role="region", aria_label=title),
                   node("p", SENTENCES[name]), style="margin: 1.5rem 0")


def _ended(results: Results) -> Iterator[Element]:
    """The slower cases, then the ties, by name."""
    for verdict, title in (("slower", "Slower cases"), ("tie", "Ties")):
        found = ended(results, verdict)
        yield node("h2", f"{title}: {len(found):,}")
        if found:
            yield node("ul", *(node("li", f"{case['name']}, {threads(count)}: {shown_ratio(case['ratio'])} "
                                          f"({shown_ratio(case['low'])} .. {shown_ratio(case['high'])}) of "
                                          f"{case['best']}") for count, case in found), id=f"ended-{verdict}")
    without = [f"{name}, {threads(count)}: {reason}" for count, name, reason in skipped(results)]
    without += [f"{name}: {reason}" for name, reason in results.get("left out", {}).items()]
    if without:
        yield node("h2", f"Without a result: {len(without):,}")
        yield node("ul", *(node("li", text) for text in without))


def _peers(results: Results) -> Iterator[Element]:
    cases = [case for run in results["runs"] for case in run["cases"]]
    names = dict.fromkeys((case["suite"], peer) for case in cases
                          for peer in [*case["grades"], *case.get("left out", {})])
    rows = [_peer(suite, peer, [case for case in cases if case["suite"] == suite])
            for suite in suites(cases) for of, peer in names if of == suite]
    yield node("h2", "The peers, and whether they are right")
    yield node("p", "Each peer's results are compared with the rule it claims before it is timed, in the very cases "
                    "that are timed. Same bits: nothing differs. Rounding: some elements differ by a few units in the "
                    "last place. Wrong: more than rounding explains.")
    yield _table("Peers", ["Suite", "Peer", "Same bits", "Rounding", "Wrong", "Left out", "Ratio, geometric mean",
                           "Wrong by, or left out because"], rows, id="peers")


def _peer(suite: str, peer: str, cases: list[CaseResult]) -> list[Element]:
    grades = [case["grades"][peer]["grade"] for case in cases if peer in case["grades"]]
    counts = [grades.count(grade) for grade in ("same bits", "rounding", "wrong")]
    reasons = [case["left out"][peer] for case in cases if peer in case.get("left out", {})]
    counts.append(len(reasons))
    kinds = ("", "", "bad" if counts[2] else "", "")
    return [node("td", TITLES.get(suite, suite)), node("td", peer, style="white-space: nowrap"),
            *(_number(f"{count:,}", count, kind) for count, kind in zip(counts, kinds, strict=True)),
            _ratio(geometric_mean(ratio(case, peer) for case in cases)),
            node("td", "; ".join([*_wrong(peer, cases), *dict.fromkeys(reasons)]))]


def _wrong(peer: str, cases: list[CaseResult]) -> Iterator[str]:
    """For each dtype in which the peer is wrong: in how much, all cases together."""
    wrong: dict[str, list[dict[str, Any]]] = {}
    for case in cases:
        if is_wrong(case, peer):
            wrong.setdefault(case["dtype"], []).append(case["grades"][peer])
    for dtype, grades in wrong.items():
        differing, checked = (sum(grade[name] for grade in grades) for name in ("differing", "checked"))
        ulps = max(float(grade["ulps"]) for grade in grades)
        by = "; a NaN stands against a number" if ulps == float("inf") else f", by up to {ulps:,.4g} ULPs"
        yield f"{dtype}: {differing:,} of {checked:,} compared elements differ{by}"


def _growth(results: Results) -> Iterator[Element]:
    if results["scaling"]:
        rows = [[node("td", f"number of {line['kind']}"), node("td", threads(line["threads"])),
                 *(node("td", text, class_="number") for text in growth(line)),
                 node("td", "; ".join(_notes(line)))] for line in results["scaling"]]
        yield node("h2", "How a step grows")
        yield _table("Growth", ["With the", "Threads", "Each more", "Fixed", "Largest distance from the line",
                                "Notes"], rows, id="growth")


def _notes(line: dict[str, Any]) -> Iterator[str]:
    """What a fitted line leaves open: the dearest tensor, and points that were left out."""
    if "most per tensor" in line:
        yield f"at most {shown_time(line['most per tensor'])} a tensor more than one tensor costs"
    for point, reason in line.get("left out", {}).items():
        yield f"{point}: {reason}"


def _startup(results: Results) -> Iterator[Element]:
    if results["startup"]:
        rows = [[node("td", cost["name"]), node("td", shown_cost(cost), class_="number"),
                 node("td", cost.get("left out", cost.get("counted", "")))] for cost in results["startup"]]
        yield node("h2", "Fixed costs")
        yield _table("Fixed costs", ["Median of fresh processes", "Time", "What is counted"], rows, id="startup")


def _cases(results: Results) -> Iterator[Element]:
    rows = [_row(run["threads"], case) for run in results["runs"] for case in run["cases"]]
    yield node("h2", "All cases")
    yield node("p", "Click a column's name to sort by it.", class_="soft")
    yield _table("All cases", ["Case", "Threads", "Tensors", "Elements", "Time", "Best peer", "Ratio", "95 % interval",
                               "torch's default", "In-run limit", "Verdict", "Wrong peers"], rows, is_sorted=True,
                 id="cases")


def _row(count: int, case: CaseResult) -> list[Element]:
    time = case["times"]["samestep"]["median"]
    kind = {"faster": "good", "slower": "bad"}.get(case["verdict"], "")
    return [
        node("td", case["name"]), _number(str(count), count), _number(f"{case['tensors']:,}", case["tensors"]),
        _number(f"{case['elements']:,}", case["elements"]), _number(shown_time(time), time), node("td", case["best"]),
        _ratio(case["ratio"]),
        node("td", f"{shown_ratio(case['low'])} .. {shown_ratio(case['high'])}", data_value=repr(case["low"])),
        _ratio(to_default(case)), _ratio(ratio(case, "limit")), node("td", case["verdict"], class_=kind),
        node("td", ", ".join(peer for peer in case["grades"] if is_wrong(case, peer))),
    ]
