"""Reports of a run, for people and programs: one HTML page, JSON or CSV, chosen by the file's suffix."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from samestep.verify.compare import metrics
from samestep.verify.compare.comparison import Comparison, TensorComparison
from samestep.verify.notation import hexadecimal, json_number, visible
from samestep.verify.observation import Observation, Problem
from samestep.verify.patterns import Words
from samestep.verify.report import comparison_page, page
from samestep.verify.suite.results import BINS, Check, Failure, Results

FORMAT = 1  # of the JSON; goes up when a reader of the last one would go wrong
COLUMNS = (
    "name", "family", "rule", "dtype", "passed", "elements", "message", "ulps", "tensor", "position", "found",
    "expected", "got",
)


def write(results: Results, path: Path) -> None:
    """Write `results` to `path` as its suffix says: ``.html``, ``.json`` or ``.csv``.

    The HTML is one file that loads nothing else and lists failures only; JSON and CSV hold every check. Raises
    ValueError for another suffix, before anything is written, and OSError.
    """
    check_suffix(path)
    make = {".html": page.as_html, ".json": as_json, ".csv": as_csv}[path.suffix.lower()]
    path.write_text(make(results), encoding="utf-8", newline="")


def write_comparison(
    comparisons: Sequence[Comparison], path: Path, *, subject: str = "dump", sentences: Sequence[str] = (),
) -> None:
    """Write the steps of a dump, compared with the rule, to `path` as its suffix says; as `write`.

    `subject` names the dump, `sentences` are the fingerprint's. JSON and CSV hold one object or row for each tensor of
    each step, and not the tensors themselves.
    """
    check_suffix(path)
    make = {".html": comparison_page.as_html, ".json": comparison_json, ".csv": comparison_csv}[path.suffix.lower()]
    path.write_text(make(comparisons, subject, sentences), encoding="utf-8", newline="")


def check_suffix(path: Path) -> None:
    """Raise ValueError for a suffix that `write` does not know: before a long run, not after it."""
    if path.suffix.lower() not in (".html", ".json", ".csv"):
        raise ValueError(f"report {path}: got the suffix {path.suffix!r}; accepted: .html, .json or .csv")


def as_json(results: Results) -> str:
    """Everything in `results` as JSON, one check on a line; the fields are those of docs/verify.md."""
    whole = {
        "format": FORMAT, "kind": "samestep verify", "subject": results.subject, "rule": results.rule,
        "order": results.order, "level": results.level, "seed": results.seed, "seconds": results.seconds,
        "versions": results.versions,
        "checks_total": len(results.checks), "checks_failed": len(results.failed),
        "sentences": results.sentences, "bins": [*BINS, "inf"],
        "histogram": [{"dtype": dtype, "tensor": tensor, "counts": list(map(int, counts))}
                      for (dtype, tensor), counts in results.histogram.items()],
    }
    start = json.dumps(whole, indent=1, allow_nan=False)
    checks = ",\n".join(json.dumps(_check(check), allow_nan=False) for check in results.checks)
    return f'{start[:-2]},\n "checks": [\n{checks}\n ]\n}}\n'


def _check(check: Check) -> dict[str, Any]:
    whole = check._asdict()
    whole["ulps"] = json_number(check.ulps)
    whole["failure"] = None if check.failure is None else _failure(check.failure)
    return whole


def _failure(failure: Failure) -> dict[str, Any]:
    return {
        "tensor": failure.tensor, "position": int(failure.position), "found": int(failure.found),
        "dtype": failure.dtype, "ulps": json_number(failure.ulps),
        "expected": hexadecimal(failure.expected, failure.dtype), "got": hexadecimal(failure.got, failure.dtype),
        "problem": None if failure.problem is None else _problem(failure.problem),
        "observed": None if failure.observed is None else _observed(failure.observed),
    }


def _problem(problem: Problem) -> dict[str, Any]:
    whole = problem._asdict()
    for name in ("parameters", "gradient", "accum", "stat"):
        whole[name] = _words(whole[name], problem.dtype)
    for name in ("learning_rate", "momentum", "dampening", "weight_decay"):
        whole[name] = json_number(whole[name])
    return {**whole, "shape": list(problem.shape)}


def _observed(seen: Observation) -> dict[str, Any]:
    return {name: _words(getattr(seen, name), seen.problem.dtype) for name in ("parameters", "accum", "stat")}


def _words(words: Words | None, dtype: str) -> list[str] | None:
    return None if words is None else [hexadecimal(word, dtype) for word in words.tolist()]


def as_csv(results: Results) -> str:
    """One row a check under `COLUMNS`; the last five are empty where no element differs."""
    rows = []
    for check in results.checks:
        failure = check.failure
        found: tuple[Any, ...] = ("",) * 5 if failure is None else (
            failure.tensor, failure.position, failure.found,
            hexadecimal(failure.expected, failure.dtype), hexadecimal(failure.got, failure.dtype))
        rows.append((*check[:4], "yes" if check.passed else "no", check.elements, check.message,
                     json_number(check.ulps), *found))
    return _csv(COLUMNS, rows)


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([visible(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return file.getvalue()


def comparison_json(comparisons: Sequence[Comparison], subject: str, sentences: Sequence[str]) -> str:
    """Every step and tensor as JSON; the fields are those of docs/verify.md."""
    whole = {
        "format": FORMAT, "kind": "samestep compare", "subject": subject, "sentences": list(sentences),
        "same": all(compared.same for compared in comparisons), "bins": [*BINS, "inf"],
        "steps": [_step(compared) for compared in comparisons],
    }
    return json.dumps(whole, indent=1, allow_nan=False) + "\n"


def _step(compared: Comparison) -> dict[str, Any]:
    problem = compared.problem
    numbers = {name: json_number(getattr(problem, name))
               for name in ("learning_rate", "momentum", "dampening", "weight_decay")}
    return {
        "step": compared.step, "same": compared.same, "rule": problem.rule, "order": compared.order,
        "dtype": problem.dtype, "shape": list(problem.shape), **numbers, "nesterov": problem.nesterov,
        "maximize": problem.maximize, "missing": compared.missing, "unexpected": compared.unexpected,
        "gradient_differing": compared.gradient_differing,
        "update": {name: json_number(number) for name, number in compared.update._asdict().items()},
        "tensors": [_tensor(tensor, problem.dtype) for tensor in compared.tensors],
    }


def _tensor(tensor: TensorComparison, dtype: str) -> dict[str, Any]:
    words = {name: None if word is None else hexadecimal(word, dtype)
             for name, word in (("expected", tensor.expected), ("got", tensor.got))}
    return {
        **tensor._asdict(), **words, "max_ulp": json_number(tensor.max_ulp), "mean_ulp": json_number(tensor.mean_ulp),
        "places": tensor.places.text,
        "metrics": [{**metric._asdict(), "value": json_number(metric.value)} for metric in tensor.metrics],
    }


def comparison_csv(comparisons: Sequence[Comparison], subject: str, sentences: Sequence[str]) -> str:
    """One row for each tensor of each step; of today's acceptance rules whether they pass."""
    fields = ("elements", "differing", "max_ulp", "mean_ulp", "nan_against_number", "first", "expected", "got",
              "places")
    rows = []
    for compared in comparisons:
        for tensor in compared.tensors:
            told = _tensor(tensor, compared.problem.dtype)
            rows.append((subject, compared.step, tensor.name, compared.problem.dtype, *(told[name] for name in fields),
                         *("passes" if metric.passed else "fails" for metric in tensor.metrics)))
    return _csv(("subject", "step", "tensor", "dtype", *fields, *metrics.NAMES), rows)
