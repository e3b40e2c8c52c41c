"""`samestep lower`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from samestep.cli.refused import Refused

if TYPE_CHECKING:
    from samestep.engine.batch import Kernel
    from samestep.tiling import TilingKey

_TARGETS = ("sm_80", "sm_90", "gfx942", "ascend950")
# the columns of the table, by class of instruction
_COLUMNS = {"fma": "fma", "mul": "mul", "add": "add", "load_128": "ld128", "store_128": "st128", "load": "load",
            "store": "store", "spill": "spill", "flush": "flush"}


@click.command(context_settings={"show_default": True}, short_help="Compile the kernels for GPUs and Ascend 950.")
@click.option("--target", "targets", type=click.Choice(_TARGETS), multiple=True, required=True,
              help="What to compile for; may be given several times.")
@click.option("--key", "keys", multiple=True, metavar="KEY",
              help="K0 .. K5, or the number of a key (0 .. 13; K3 is 12 and 13); may be given several times.")
@click.option("--all", "everything", is_flag=True, help="All keys: 36 kernels of rule cann in each order.")
@click.option("--dtype", "dtypes", type=click.Choice(["float32", "float16", "bfloat16", "float64"]), multiple=True,
              show_default="all of the rule", help="Only this one; may be given several times. float64: rule torch.")
@click.option("--order", "orders", type=click.Choice(["spec", "ascend950"]), multiple=True, show_default="both",
              help="Evaluation order of rule cann.")
@click.option("--rule", type=click.Choice(["cann", "torch"]), default="cann",
              help="The operator's rules O, or rule T of torch.optim.SGD (GPUs only).")
@click.option("--entry", "entries", type=click.Choice(["list", "one"]), multiple=True, show_default="both",
              help="On GPUs: the kernel for a list of tensor sets, or that for one.")
@click.option("--ascend-tools", type=click.Path(file_okay=False, path_type=Path), envvar="SAMESTEP_ASCEND_TOOLS",
              help="Folder that the Ascend compilers were installed into.  [env: SAMESTEP_ASCEND_TOOLS]")
@click.option("-o", "--out", type=click.Path(file_okay=False, path_type=Path), required=True,
              help="Folder for the results: one folder a target, with a manifest.json.")
def lower(targets: Sequence[str], everything: bool, out: Path, **chosen: Any) -> None:
    """Compile the update kernels ahead of time, on any machine.

    GPUs: PTX, cubin and SASS, or AMDGCN and hsaco. Ascend 950: TTIR, linalg and HIVM, and the NPU's binary where
    hivmc-a5 (CANN 9.1 or later) is on PATH. The manifest names every kernel with what it needs and what it consists of.
    Compilers are never downloaded: exit status 2 says what is missing and how to get it. docs/ascend.md has more.
    """
    from samestep.lowering import build, gpu
    from samestep.lowering.tools import CompilerError, MissingToolError

    if bool(chosen["keys"]) == everything:
        raise Refused("name keys with --key K3 or --key 12, or ask for --all of them" +
                      (", but not for both" if everything else ""))
    wanted = _kernels(targets, chosen)
    try:
        for target in targets:
            with _bar(target) as watch:
                manifest = build.build(target, wanted, out / target, entries=chosen["entries"] or gpu.ENTRIES,
                                       ascend_tools=chosen["ascend_tools"], watch=watch)
            _print(manifest, out / target / build.MANIFEST)
    except (MissingToolError, CompilerError) as error:
        raise Refused(str(error)) from None
    except OSError as error:
        raise Refused(f"cannot write {error.filename or out}: {error.strerror or error}") from None


def _kernels(targets: Sequence[str], chosen: dict[str, Any]) -> list[Kernel]:
    """What the options ask for, after refusing those that do not go together."""
    from samestep.contract import ORDERS
    from samestep.lowering import build

    rule = chosen["rule"]
    if rule == "torch" and build.ASCEND in targets:
        raise Refused("--rule torch is for GPUs; --target ascend950 has rule cann")
    if rule == "torch" and chosen["orders"]:
        raise Refused("--order is of rule cann; rule torch has one order of its own")
    dtypes = chosen["dtypes"] or build.RULE_DTYPES[rule]
    for dtype in dtypes:
        if dtype not in build.RULE_DTYPES[rule]:
            raise Refused(f"--dtype {dtype}: rule {rule} has {', '.join(build.RULE_DTYPES[rule])}")
    keys = [key for text in chosen["keys"] for key in _keys(text, rule)] or build.every_key(rule)
    return build.kernels(rule, dict.fromkeys(keys), dict.fromkeys(dtypes), chosen["orders"] or ORDERS)


def _keys(text: str, rule: str) -> list[TilingKey]:
    from samestep.lowering.build import every_key
    from samestep.tiling import encode, legal_keys

    found = [key for key in legal_keys() if text in (key.variant, str(encode(key)))]
    if not found:
        raise Refused(f"--key {text}: accepted are K0 .. K5 and the numbers {sorted(map(encode, legal_keys()))}")
    usable = [key for key in found if key in every_key(rule)]
    if not usable:
        raise Refused(f"--key {text}: in rule torch dampening is a number and no term, and schMode is no part of a "
                      "kernel; accepted are K0, K2, K4, K5")
    return usable


@contextmanager
def _bar(target: str) -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(f"Compiling for {target}"), BarColumn(24), TextColumn("{task.completed} of {task.total}"),
               TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print(manifest: dict[str, Any], path: Path) -> None:
    """A line for each kernel, then where the manifest is."""
    from rich.console import Console
    from rich.table import Table

    kernels = list({kernel["name"]: kernel for kernel in manifest["kernels"]}.values())
    columns = [name for name in _COLUMNS if any(name in kernel["instructions"] for kernel in kernels)]
    has_registers = "registers" in kernels[0]
    table = Table(box=None, pad_edge=False)
    table.add_column("kernel", no_wrap=True, overflow="fold")
    for title in [*["regs"] * has_registers, *(_COLUMNS[name] for name in columns)]:
        table.add_column(title, justify="right", no_wrap=True)
    for kernel in kernels:
        counts = [str(kernel["instructions"].get(name, 0)) for name in columns]
        registers = [str(kernel["registers"])] if has_registers else []
        table.add_row(kernel["name"].removeprefix("samestep_"), *registers, *counts)
    console = Console()
    console.print(table)
    shared = len(manifest["kernels"]) - len(kernels)
    console.print(f"\n{len(manifest['kernels'])} kernels for {manifest['target']}"
                  f"{f', {shared} of them with the code of schMode 0' if shared else ''}: {path}", soft_wrap=True)
    if manifest["target"] == "ascend950" and not any("npu" in kernel["files"] for kernel in kernels):
        console.print("No NPU binary was made: hivmc-a5 is not on PATH; it comes with CANN 9.1 or later.")
