"""`samestep fingerprint`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from samestep.cli.compare import about_dump
from samestep.cli.refused import Refused

if TYPE_CHECKING:
    from samestep.verify.fingerprint.verdict import Verdict

_OF_DUMPS = ("shape", "learning_rate", "momentum", "dampening", "weight_decay", "nesterov", "maximize")


@click.command(short_help="Name the rule that a kernel's bits follow.")
@click.option("--target", metavar="MODULE:FUNCTION", help="A Python callable: module:function or file.py:function.")
@click.option("--engine", metavar="NAME", help="An engine of this package instead; `samestep info` lists them.")
@click.option("--dump", type=click.Path(path_type=Path), metavar="DIR|CASE.json", help="Recorded steps of one kernel.")
@about_dump
@click.option("--order", metavar="[spec|ascend950]", help="The reference's evaluation order, rule cann.  [default: "
              "spec, or the dump's]")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of what a callable is asked.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def fingerprint(target: str | None, engine: str | None, dump: Path | None, order: str | None, seed: int, as_json: bool,
                **told: Any) -> None:
    """Name the rule that a kernel's bits follow: which rule, which order, what is fused, rounded, flushed, forgotten.

    A callable is asked with inputs on which the explanations disagree until one is left, in every dtype or in the one
    given with --dtype; docs/verify.md says what it is called with. Recorded steps (docs/dumps.md) tell what they can.
    Exit status: 0 if one rule is named and certain, 1 if several explain the data or none does, 2 if it could not run.
    """
    if sum(given is not None for given in (target, engine, dump)) != 1:
        raise click.UsageError("give one of --target, --engine and --dump")
    if dump is not None:
        verdicts = {"": _of_dump(dump, order, told)}
    else:
        needless = [name for name in _OF_DUMPS if told[name] is not None]
        if needless:
            raise click.UsageError(f"{', '.join(needless)}: only for a --dump; a callable is asked with many values")
        verdicts = _of_callable(target, engine, order, seed, told)
    if as_json:
        click.echo(json.dumps({name or "dump": as_data(one) for name, one in verdicts.items()}, indent=2))
    else:
        for name, one in verdicts.items():
            _print(name, one)
    if not all(one.certain for one in verdicts.values()):
        raise SystemExit(1)


def _of_dump(dump: Path, order: str | None, told: dict[str, Any]) -> Verdict:
    from samestep import contract
    from samestep.verify import dumps
    from samestep.verify.fingerprint.naming import of_dump

    try:
        if order is not None:
            contract.check_order(order)
        read = dumps.read(dump, dumps.Given(**told))
        return of_dump(read.observations, order=order or read.order or "spec")
    except (dumps.DumpError, ValueError) as error:
        raise Refused(f"{error}") from None


def _of_callable(name: str | None, engine: str | None, order: str | None, seed: int,
                 told: dict[str, Any]) -> dict[str, Verdict]:
    from samestep import contract
    from samestep.verify.fingerprint.naming import of_callable
    from samestep.verify.observation import TargetError
    from samestep.verify.suite import target

    rule = told["rule"] or "cann"
    dtypes = [told["dtype"]] if told["dtype"] else [*contract.DTYPES, *(["float64"] if rule == "torch" else [])]
    if rule == "cann" and "float64" in dtypes:
        raise Refused(f"rule cann has no dtype float64; accepted: {', '.join(contract.DTYPES)}")
    try:
        contract.check_order(order or "spec")
        subject = target.load(name) if name is not None else target.of_engine(str(engine), rule, order or "spec")
        return {dtype: of_callable(subject.run, dtype=dtype, rule=rule, order=order or "spec", seed=seed)
                for dtype in dtypes}
    except (target.LoadError, TargetError, contract.ContractError) as error:
        raise Refused(f"{error}") from None
    except Exception as error:
        raise Refused(f"{name or engine} raised {type(error).__name__}: {error}") from None


def as_data(verdict: Verdict) -> dict[str, Any]:
    """A verdict as plain data, for JSON."""
    plain = verdict._asdict()
    plain["hypotheses"] = [
        {key: sorted(value) if isinstance(value, frozenset) else value for key, value in h._asdict().items()}
        for h in verdict.hypotheses]
    return plain


def _print(name: str, verdict: Verdict) -> None:
    color = "green" if verdict.certain else "yellow" if not verdict.residual else "red"
    click.echo((f"{name}: " if name else "") + click.style(verdict.sentence, fg=color, bold=True))
    for title, lines in (("explained", _counts(verdict)), ("cannot be told apart from" if verdict.certain else "or",
                                                           verdict.alternatives), ("unexplained", verdict.residual)):
        for k, line in enumerate(lines):
            click.echo(f"  {title if k == 0 else '':<26}{line}")


def _counts(verdict: Verdict) -> list[str]:
    return [", ".join(f"{tensor} {good:,} of {total:,}" for tensor, (good, total) in verdict.explained.items())]
