"""The HTML page of a run of the conformance suite: what a reader asks, in the order in which it is asked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from xml.etree.ElementTree import Element

import numpy as np

from samestep.engine import fpenv
from samestep.verify.notation import decimal, hexadecimal
from samestep.verify.patterns import WORDS, Words, ranks, word_of
from samestep.verify.report import markup
from samestep.verify.report.histogram import histogram
from samestep.verify.report.markup import node, table
from samestep.verify.suite import judge
from samestep.verify.suite.results import Check, Failure, Results
from samestep.verify.titles import TITLES

ROWS = 500  # failures listed on the page; JSON and CSV hold all
ELEMENTS = 16  # of a smallest input; what shrinking leaves is seldom more than one


def as_html(results: Results) -> str:
    """The page of `results`, complete in itself: styles, script and pictures inline, nothing loaded from elsewhere.

    Passes are counted, not listed; of the failures at most `ROWS` are listed, spread over rules, dtypes and families.
    """
    return markup.page(
        f"samestep verify: {results.subject}",
        node("h1", "samestep verify: ", node("code", results.subject)), _verdict(results), _facts(results),
        *_sentences(results), *_summary(results), *_histograms(results), *_failures(results.failed, results.order),
    )


def _verdict(results: Results) -> Element:
    failed, total = len(results.failed), len(results.checks)
    elements = sum(check.elements for check in results.checks)
    if failed:
        return node("p", f"✗ {failed:,} of {total:,} checks failed, with {elements:,} elements judged",
                    class_="verdict bad")
    return node("p", f"✓ All checks passed: {total:,}, with {elements:,} elements judged", class_="verdict good")


def _facts(results: Results) -> Element:
    facts = {
        "Rule": f"{results.rule}, order {results.order}" if results.rule == "cann" else results.rule,
        "Level": results.level, "Seed": str(results.seed), "Time": f"{results.seconds:.1f} s",
        "Versions": ", ".join(f"{name} {version}" for name, version in results.versions.items()),
    }
    return node("dl", *(part for name, text in facts.items() for part in (node("dt", name), node("dd", text))))


def _sentences(results: Results) -> Iterator[Element]:
    if results.sentences:
        yield node("h2", "What the kernel does instead")
        yield node("dl", *(part for dtype, sentence in results.sentences.items()
                           for part in (node("dt", dtype), node("dd", sentence))), id="sentences")


def _summary(results: Results) -> Iterator[Element]:
    """Counts by rule and dtype: failed of all where something failed, else the number of passes."""
    counts: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for check in results.checks:
        count = counts[check.rule][check.dtype or "any"]
        count[0] += not check.passed
        count[1] += 1
    dtypes = sorted({dtype for row in counts.values() for dtype in row}, key=_dtype_order)
    titles = {rule: f"{rule} {TITLES.get(rule, '')}".strip() for rule in sorted(counts, key=_rule_order)}
    rows = [node("tr", node("th", title, scope="row"), *(_count(counts[rule].get(dtype)) for dtype in dtypes))
            for rule, title in titles.items()]
    yield node("h2", "Checks by rule and dtype")
    head = [node("th", "Rule", scope="col"), *(node("th", dtype, scope="col", class_="number") for dtype in dtypes)]
    yield table("Checks", head, [node("tbody", *rows)], id="summary")


def _count(count: list[int] | None) -> Element:
    if count is None:
        return node("td", "-", class_="number soft")
    failed, total = count
    if failed:
        return node("td", f"✗ {failed:,} of {total:,} failed", class_="number bad")
    return node("td", f"✓ {total:,} passed", class_="number good")


def _dtype_order(dtype: str) -> tuple[int, str]:
    known = ("float32", "float16", "bfloat16", "float64")
    return (known.index(dtype) if dtype in known else len(known), dtype)


def _rule_order(rule: str) -> tuple[str, int, str]:
    """O2 before O10."""
    return rule[:1], int(rule[1:]) if rule[1:].isdecimal() else 0, rule


def _histograms(results: Results) -> Iterator[Element]:
    drawn = [(f"{dtype} {tensor}", counts) for (dtype, tensor), counts in results.histogram.items() if any(counts)]
    if drawn:
        yield node("h2", "Distance from the right result, in ULPs")
        yield node("p", "Elements of all checks by their distance; a NaN where a number belongs counts as the largest. "
                        "A tensor that rule O6 leaves alone is judged by its bytes, so it can fail at distance 0.",
                   class_="soft")
        yield node("div", *(histogram(title, counts) for title, counts in drawn), class_="histograms")


def _failures(failed: list[Check], order: str) -> Iterator[Element]:
    if not failed:
        return
    listed = _spread(failed, ROWS)
    yield node("h2", "Failures")
    if len(listed) < len(failed):
        yield node("p", f"{len(listed):,} of {len(failed):,} are listed, from every rule, dtype and family; a report "
                        "in .csv or .json holds all.", class_="soft")
    columns = {"Check": "", "Rule": "", "Dtype": "", "Tensor": "", "Elements": "number", "Largest ULPs": "number",
               "Expected": "", "Got": ""}
    head = [node("th", node("button", name, type="button"), scope="col", aria_sort="none", class_=kind)
            for name, kind in columns.items()]
    yield table("Failures", head, [_row(check, len(columns), order) for check in listed], id="failures")


def _spread(failed: list[Check], limit: int) -> list[Check]:
    """At most `limit` checks in their order: the first of every kind, then the second of every kind, and so on."""
    if len(failed) <= limit:
        return failed
    seen: dict[tuple[str, str, str], int] = defaultdict(int)
    turns = []
    for place, check in enumerate(failed):
        kind = check.rule, check.dtype, check.family
        turns.append((seen[kind], place))
        seen[kind] += 1
    return [failed[place] for place in sorted(place for _, place in sorted(turns)[:limit])]


def _row(check: Check, columns: int, order: str) -> Element:
    """A body of two rows: the figures by which failures are sorted, and beneath them the message and the input."""
    failure = check.failure
    cells = [node("td", check.name), node("td", check.rule), node("td", check.dtype)]
    if failure is None:
        cells += [node("td", "-") for _ in range(columns - len(cells))]
        for cell in cells[4:]:
            cell.attrib["data-value"] = "-Infinity"
    else:
        cells += [node("td", failure.tensor), figure(failure.found), figure(max(check.ulps, failure.ulps)),
                  *(word_cell(word, failure.dtype) for word in (failure.expected, failure.got))]
    if failure is not None and failure.problem is not None:
        text = node("details", node("summary", f"{check.message or 'differs'}; smallest input"),
                    _smallest(failure, order))
    else:
        text = node("div", check.message)
    return node("tbody", node("tr", *cells), node("tr", node("td", text, colspan=str(columns), class_="message")))


def figure(number: float) -> Element:
    """A cell with a count or a distance; sorted by its exact value. An infinite distance is a NaN against a number."""
    shown = "NaN" if number == float("inf") else f"{number:,.0f}" if number < 1e15 else f"{number:.3g}"
    value = "Infinity" if number == float("inf") else repr(number)
    return node("td", shown, class_="number", data_value=value)


def word_cell(word: int, dtype: str) -> Element:
    """A cell with a pattern as bits and as a number; sorted by the number."""
    rank = int(ranks(np.array([word], WORDS[dtype]), dtype)[0])
    return node("td", node("code", hexadecimal(word, dtype)), f" {decimal(word, dtype)}", data_value=str(rank))


def _smallest(failure: Failure, order: str) -> Element:
    """The input as bits and as numbers; for each written tensor what had to come, and what came."""
    assert failure.problem is not None
    problem, came = failure.problem, failure.observed
    with fpenv.default(), np.errstate(all="ignore"):
        right = judge.expected(problem, order)
    rows = []
    for tensor in ("parameters", "gradient", "accum", "stat"):
        columns = [getattr(problem, tensor)]
        if tensor != "gradient":
            columns += [getattr(right, tensor), None if came is None else getattr(came, tensor)]
        if any(words is not None for words in columns):
            name = "momentum_buffer" if tensor == "accum" and problem.rule == "torch" else tensor
            rows.append(node("tr", node("th", name, scope="row"), *(_words(words, problem.dtype) for words in columns)))
    for name, number in (("learning_rate", problem.learning_rate), ("momentum", problem.momentum)):
        shown = node("td", repr(number))
        if problem.rule == "cann":
            shown = word_cell(word_of(number, problem.dtype), problem.dtype)
        rows.append(node("tr", node("th", name, scope="row"), shown))
    attributes = [f"{name}={getattr(problem, name)!r}" for name in ("dampening", "weight_decay", "nesterov")]
    if problem.rule == "torch":
        attributes.append(f"maximize={problem.maximize!r}")
    about = f"{', '.join(attributes)}; shape {tuple(problem.shape)}"
    rows.append(node("tr", node("td", about, colspan="4")))
    head = node("tr", *(node("th", name, scope="col") for name in ("", "In", "Expected", "Got")))
    return node("table", node("thead", head), node("tbody", *rows))


def _words(words: Words | None, dtype: str) -> Element:
    """A cell with the patterns of a tensor, as many as `ELEMENTS`."""
    if words is None:
        return node("td", "-")
    parts: list[Element | str] = []
    for word in words[:ELEMENTS].tolist():
        parts += [node("code", hexadecimal(word, dtype)), f" {decimal(word, dtype)}", node("br")]
    if words.size > ELEMENTS:
        parts.append(f"and {words.size - ELEMENTS:,} more")
    return node("td", *parts)
