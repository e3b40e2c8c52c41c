"""`samestep info`."""

from __future__ import annotations

import json
from typing import Any

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.option("--clear-cache", is_flag=True, help="Delete the compiled kernels of every version, and nothing else.")
def info(as_json: bool, clear_cache: bool) -> None:
    """Show versions, processor, threads, engines and the cache of compiled kernels."""
    from samestep import info as about

    if as_json and clear_cache:
        raise click.UsageError("--json and --clear-cache exclude each other")
    if clear_cache:
        cleared = about.clear_cache()
        click.echo(f"freed {_size(cleared.freed)} ({_kernels(cleared.kernels)}) in {cleared.root}")
        if cleared.left:
            raise click.ClickException(f"{_size(cleared.left)} could not be deleted")
    elif as_json:
        click.echo(json.dumps(about.facts(), indent=2))
    else:
        _print_facts(about.facts(), about.VARIABLES)


def _print_facts(facts: dict[str, Any], variables: dict[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for title, rows in _rows(facts, variables).items():
        for k, row in enumerate(rows):
            table.add_row("" if k else title, *row, end_section=k == len(rows) - 1)
        table.add_row()
    Console(highlight=False).print(table)


def _rows(facts: dict[str, Any], variables: dict[str, str]) -> dict[str, list[tuple[str, str]]]:
    processor, threads, kept = facts["processor"], facts["threads"], facts["cache"]
    features = processor["features"]
    return {
        "versions": [(name, version or "not installed") for name, version in facts["versions"].items()],
        "processor": [
            ("name", f"{processor['name']} ({processor['architecture']}, LLVM: {processor['llvm_name']})"),
            ("has", " ".join(name for name in features if features[name]) or "-"),
            ("lacks", " ".join(name for name in features if not features[name]) or "-"),
        ],
        "threads": [("count", str(threads["count"])), ("pool", threads["pool"])],
        "engines": [(name, f"unavailable: {reason}" if reason else "available")
                    for name, reason in facts["engines"].items()],
        "cache": [
            ("folder", kept["folder"] or f"none: {kept['root']} cannot be written, so every process compiles"),
            ("holds", f"{_kernels(kept['kernels'])}, {_size(kept['bytes'])}"),
            ("all versions", f"{_kernels(kept['kernels_of_all_versions'])}, {_size(kept['bytes_of_all_versions'])}"),
        ],
        "environment": [(name, f"{value if value is not None else 'not set'} ({variables[name]})")
                        for name, value in facts["environment"].items()],
    }


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


def _kernels(count: int) -> str:
    return f"{count} kernel{'s' * (count != 1)}"
