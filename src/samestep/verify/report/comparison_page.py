"""The HTML page of a comparison: a dump against the rule, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element

from samestep.verify.compare.comparison import Comparison, TensorComparison, Update, verdict
from samestep.verify.report import markup
from samestep.verify.report.histogram import histogram
from samestep.verify.report.markup import node, table
from samestep.verify.report.page import figure, word_cell

STEPS = 100  # shown in full; JSON and CSV hold all


def as_html(comparisons: Sequence[Comparison], subject: str, sentences: Sequence[str]) -> str:
    """The page of `comparisons`, complete in itself; steps that differ come before those that do not."""
    same = all(each.same for each in comparisons)
    found = node("p", f"{'✓' if same else '✗'} {verdict(list(comparisons))}",
                 class_=f"verdict {'good' if same else 'bad'}")
    named = [node("h2", "What the kernel does instead"), *(node("p", text) for text in sentences)] if sentences else []
    listed = sorted(comparisons, key=lambda each: each.same)[:STEPS]
    left_out = [node("p", f"{len(listed):,} of {len(comparisons):,} steps are shown; a report in .csv or .json holds "
                          "all.", class_="soft")] if len(listed) < len(comparisons) else []
    steps = (part for each in listed for part in _step(each, len(comparisons) > 1))
    return markup.page(f"samestep compare: {subject}", node("h1", "samestep compare: ", node("code", subject)), found,
                       *named, *left_out, *steps)


def _step(compared: Comparison, several: bool) -> Iterator[Element]:
    if several:
        yield node("h2", f"Step {compared.step}: {'the same' if compared.same else 'differs'}")
    yield _facts(compared)
    yield node("h3", "Bits")
    head = ["Tensor", "Elements", "Differing", "Largest ULPs", "Mean ULPs", "NaN against number", "First at",
            "Expected", "Got", "Where"]
    yield table("Bits", head, [node("tbody", *(_bits(tensor, compared.problem.dtype) for tensor in compared.tensors))])
    if compared.missing:
        yield node("p", f"Not recorded, so not judged: {', '.join(compared.missing)}.")
    if compared.unexpected:
        yield node("p", f"Recorded, though the step makes none: {', '.join(compared.unexpected)}.", class_="bad")
    if compared.gradient_differing:
        yield node("p", f"The gradient, which is only read, changed in {compared.gradient_differing:,} elements.")
    yield node("h3", "The update: parameters before less parameters after, in ULPs")
    yield _update(compared.update)
    yield node("h3", "What today's acceptance rules say of the same data")
    yield _metrics(compared.tensors)
    yield node("h3", "Distance from the right result, in ULPs")
    yield node("div", *(histogram(tensor.name, tensor.histogram) for tensor in compared.tensors), class_="histograms")


def _facts(compared: Comparison) -> Element:
    problem = compared.problem
    facts = {
        "Rule": problem.rule if compared.order is None else f"{problem.rule}, order {compared.order}",
        "Tensors": f"{problem.dtype}, shape {problem.shape}",
        "Hyperparameters": ", ".join(f"{name}={getattr(problem, name)!r}" for name in (
            "learning_rate", "momentum", "dampening", "weight_decay", "nesterov")),
    }
    return node("dl", *(part for name, text in facts.items() for part in (node("dt", name), node("dd", text))))


def _bits(tensor: TensorComparison, dtype: str) -> Element:
    differing = figure(tensor.differing)
    differing.set("class", f"number {'bad' if tensor.differing else 'good'}")
    cells = [node("th", tensor.name, scope="row"), figure(tensor.elements), differing, figure(tensor.max_ulp),
             node("td", f"{tensor.mean_ulp:.3g}", class_="number"), figure(tensor.nan_against_number)]
    if tensor.first is None or tensor.expected is None or tensor.got is None:
        cells += [node("td", "-") for _ in range(3)]
    else:
        cells += [figure(tensor.first), word_cell(tensor.expected, dtype), word_cell(tensor.got, dtype)]
    return node("tr", *cells, node("td", tensor.places.text))


def _update(update: Update) -> Element:
    rows = (("expected", update.expected_moved, update.expected_mean, update.expected_max),
            ("recorded", update.got_moved, update.got_mean, update.got_max))
    body = node("tbody", *(node("tr", node("th", name, scope="row"), figure(moved),
                                node("td", f"{mean:.4g}", class_="number"), figure(most))
                           for name, moved, mean, most in rows))
    inner = table("The update", ["", "Parameters that move", "Mean ULPs", "Largest ULPs"], [body])
    text = (f"Of {update.elements:,} parameters {update.still:,} should move and do not; {update.backwards:,} move the "
            "other way.")
    return node("div", inner, node("p", text))


def _metrics(tensors: Sequence[TensorComparison]) -> Element:
    rows = []
    for metrics in zip(*(tensor.metrics for tensor in tensors), strict=True):
        cells = [node("td", f"{'✓ passes' if metric.passed else '✗ fails'} ({metric.value:.4g})",
                      class_="good" if metric.passed else "bad") for metric in metrics]
        rows.append(node("tr", node("th", metrics[0].name, scope="row"), node("td", metrics[0].limit), *cells))
    bits = [node("td", "✗ differs" if tensor.differing else "✓ the same", class_="bad" if tensor.differing else "good")
            for tensor in tensors]
    rows.append(node("tr", node("th", "samestep", scope="row"), node("td", "the rule's bits"), *bits))
    head = ["Acceptance rule", "Passes if", *(tensor.name for tensor in tensors)]
    return table("Acceptance rules", head, [node("tbody", *rows)])
