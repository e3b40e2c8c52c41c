"""`samestep graph plan`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from samestep.cli.refused import Refused

if TYPE_CHECKING:
    from samestep.graph.plan import Plan

_FIELDS = {"schMode": "sch_mode", "useNesterov": "nesterov", "hasWeightDecay": "weight_decay",
           "hasDampening": "dampening"}


def _shape(_context: click.Context, _option: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r}; a shape is lengths with commas between, such as 3761,4,44,4") from None


@click.command()
@click.option("--shape", required=True, callback=_shape, help="Of parameters: lengths with commas between.")
@click.option("--dtype", default="float32", show_default=True, help="float32, float16 or bfloat16.")
@click.option("--dampening", type=float, default=0.0, show_default=True)
@click.option("--weight-decay", type=float, default=0.0, show_default=True)
@click.option("--nesterov", is_flag=True, help="Nesterov momentum.")
@click.option("--order", default="spec", show_default=True, help="Evaluation order: spec or ascend950.")
@click.option("--threads", type=click.IntRange(min=1), help="Of the cpu engine; default: as many as it would use.")
@click.option("--soc", help="Plan for a device instead of this machine's cpu engine: ascend950.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(shape: tuple[int, ...], threads: int | None, soc: str | None, as_json: bool, **options: Any) -> None:
    """Show which kernel a node of the operator takes, and how its work is split."""
    from samestep.engine.threads import set_num_threads
    from samestep.graph import plan as planning

    if threads is not None and soc is not None:
        raise click.UsageError("--threads is for the cpu engine; a device (--soc) has its own cores")
    set_num_threads(threads)
    try:
        found = planning.plan(shape, soc=soc, **options)
    except ValueError as error:  # a ContractError is one
        raise Refused(str(error)) from None
    finally:
        set_num_threads(None)
    facts = _facts(found, soc)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        _print_facts(facts)


def _facts(found: Plan, soc: str | None) -> dict[str, Any]:
    from samestep.tiling import encode

    facts: dict[str, Any] = {
        "device": soc or "cpu engine",
        "kernel": found.kernel,
        "variant": found.key.variant,
        "key": {"number": encode(found.key), **{name: int(getattr(found.key, at)) for name, at in _FIELDS.items()}},
        "split": found.split._asdict(),
    }
    if found.ub is not None:
        facts["elementwise_tiling"] = found.elementwise_tiling()
        facts["unified_buffer"] = found.ub._asdict()
    return facts


def _print_facts(facts: dict[str, Any]) -> None:
    for name, value in facts.items():
        title = name.replace("_", " ")
        if not isinstance(value, dict):
            click.echo(f"{title:<20}{value}")
            continue
        for k, (field, number) in enumerate(value.items()):
            click.echo(f"{'' if k else title:<20}{field:<26}{number:>12}")
