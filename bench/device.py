"""The gpu engine on a device: `PYTHONPATH=src python bench/device.py` (or `make device`), some minutes in one call.

First its bits, against engine reference and the judges; a kernel with a wrong bit means no times. Then steps against
torch's for-loop, foreach and fused in 200 cases, on three models' lists also against a compiled step, all by the
device's events and interleaved; then bandwidth against a copy on the same device. All figures go into a JSON file, a
short table comes last. What cannot be done here is said and left out. `--dry-run` does a small part of all that with
Triton's interpreter, where there is no device; its times mean nothing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import statistics
import sys
import time
from pathlib import Path

NEEDED = ("numpy", "torch", "triton", "ml_dtypes")
GOALS = {"slowest of 200 cases, ours / fused": (1.0, "most"), "copy bandwidth, 256 MiB and more": (0.92, "least"),
         "1000 x 64, ours / fused": (0.6, "most"), "ResNet-50, ours / fused": (0.6, "most")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/device.json"), help="the file for all figures")
    parser.add_argument("--seconds", type=float, default=280, help="what takes longer is left out from here on")
    parser.add_argument("--workers", type=int, default=8, help="processes that compile and check")
    parser.add_argument("--only-bits", action="store_true", help="measure no times")
    parser.add_argument("--dry-run", action="store_true", help="a small part, by Triton's interpreter on the CPU")
    options = parser.parse_args()
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(f"skipped: everything, since {', '.join(missing)} cannot be imported here")
        return 2
    if options.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"
        options.workers = 1
    figures = Run(options).everything()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    table(figures)
    print(f"all figures: {options.out}")
    return 1 if figures["wrong"] else 0


class Run:
    """One run of the script and the time it has."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.start = options, time.monotonic()
        self.skipped: list[str] = []

    def left(self) -> float:
        return float(self.options.seconds - (time.monotonic() - self.start))

    def everything(self) -> dict[str, object]:
        import device_bits  # puts src on the path
        from samestep.engine import gpu

        reason = gpu.unavailable()
        if reason is not None:
            raise SystemExit(f"skipped: everything, since engine gpu is unavailable here: {reason}")
        dry = self.options.dry_run
        checks = device_bits.all_checks(dry)
        bits = device_bits.run(checks, dry, self.options.workers)
        wrong = {name: found for name, found in bits.items() if found.get("wrong") or "error" in found}
        figures: dict[str, object] = {"run": facts(dry), "bits": bits, "wrong": wrong}
        print(f"[{self.options.seconds - self.left():.0f} s] bits: {len(bits)} checks, {len(wrong)} failed", flush=True)
        # Where a check of graphs or of waiting could not be made, times still say something; wrong bits have none.
        kernels = ("operator", "rule", "optimizer")
        if any("error" not in found or name.startswith(kernels) for name, found in wrong.items()):
            self.skipped.append("all times, since bits are wrong or kernels failed")
        elif not self.options.only_bits:
            figures |= self.times(dry)
        return {**figures, "skipped": self.skipped, "seconds": round(self.options.seconds - self.left(), 1)}

    def times(self, dry: bool) -> dict[str, object]:
        import device_bits
        import device_speed

        if dry:
            device_bits.steps(dry, lambda number, step: step())  # sends parameters of the CPU to engine gpu
        clock = device_speed.Clock(dry)
        found: dict[str, dict[str, object]] = {"bandwidth": {}, "cases": {}, "models": {}}
        self.attempt("bandwidth", lambda: found["bandwidth"].update(device_speed.bandwidth(clock)))
        for name in device_speed.LISTS:
            self.attempt(name, lambda name=name: found["models"].update({name: device_speed.model(clock, name, False)}))
        for case in device_speed.CASES[:2] if dry else device_speed.CASES:
            label = " ".join(case)
            self.attempt(label, lambda c=case, la=label: found["cases"].update({la: device_speed.single(clock, c)}))
        for name in () if dry else device_speed.LISTS:  # last: how long compiling takes nobody knows
            label = f"{name}, also compiled"
            self.attempt(label, lambda n=name, la=label: found["models"].update(
                {la: device_speed.model(clock, n, True)}))
        return found

    def attempt(self, label: str, measure) -> None:
        """Measure, unless there is no time left; an error is a line of its own and not the end."""
        import device_speed

        if self.left() < 5:
            self.skipped.append(f"{label}: no time left")
            return
        try:
            with device_speed.at_most(self.left()):
                measure()
        except Exception as error:
            self.skipped.append(f"{label}: {type(error).__name__}: {str(error)[:300]}")


def facts(dry: bool) -> dict[str, object]:
    import torch

    versions = {"Python": sys.version.split()[0]}
    for name in ("samestep", "torch", "triton", "numpy", "numba", "ml_dtypes", "platformdirs"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "in the source tree" if name == "samestep" else "missing"
    device = "Triton's interpreter" if dry else torch.cuda.get_device_name()
    return {"dry": dry, "date": time.strftime("%Y-%m-%d"), "device": device, "versions": versions,
            "CUDA": torch.version.cuda}


def table(figures: dict[str, object]) -> None:
    """The short table: bits, goals, medians by dtype, and what was left out."""
    run, bits, wrong = figures["run"], figures["bits"], figures["wrong"]
    elements = sum(found.get("checked", 0) for found in bits.values())
    print(f"\n{run['device']}, torch {run['versions']['torch']}, Triton {run['versions']['triton']}, {run['date']}")
    print(f"bits: {len(bits)} checks, {elements:,} elements, {len(wrong)} checks failed")
    for name, found in list(wrong.items())[:20]:
        print(f"  FAILED {name}: {found.get('error', str(found.get('wrong')) + ' elements')}")
    for name, value in goals(figures).items():
        limit, kind = GOALS[name]
        met = value <= limit if kind == "most" else value >= limit
        print(f"  {name:40s} {value:8.3f}   goal: at {kind} {limit:.2f}, {'met' if met else 'MISSED'}")
    if run["dry"]:
        cases, models = (len(figures.get(key, {})) for key in ("cases", "models"))
        print(f"  a dry run: {cases} cases and {models} lists were stepped through, and nothing was measured")
    else:
        shown_times(figures)
    for line in figures["skipped"]:
        print(f"  skipped: {line}")


def shown_times(figures: dict[str, object]) -> None:
    for dtype in ("float32", "float64", "bfloat16", "float16"):
        rows = [found for name, found in figures.get("cases", {}).items() if f" {dtype} " in name]
        if rows:
            shown = ", ".join(f"{way} {statistics.median(row[way]['ours / it'] for row in rows):.2f}"
                              for way in ("fused", "foreach", "for-loop"))
            print(f"  {dtype}, {len(rows)} cases, median of ours / it: {shown}")
    for name, found in figures.get("models", {}).items():
        shown = ", ".join(f"{way} {value['ours / it']:.2f}" for way, value in found.items() if way != "ours")
        print(f"  {name}: ours {found['ours']['device_us']:.0f} us a step; ours / it: {shown}")


def goals(figures: dict[str, object]) -> dict[str, float]:
    """The figures that have a goal, as far as they were measured."""
    found: dict[str, float] = {}
    if figures["run"]["dry"]:
        return found  # times of an interpreter
    cases = figures.get("cases", {})
    if cases:
        found["slowest of 200 cases, ours / fused"] = max(row["fused"]["ours / it"] for row in cases.values())
    parts = [row["of the copy"] for rows in figures.get("bandwidth", {}).values() for name, row in rows.items()
             if name != "copy"]
    if parts:
        found["copy bandwidth, 256 MiB and more"] = min(parts)
    for name in ("1000 x 64", "ResNet-50"):
        if name in figures.get("models", {}):
            found[f"{name}, ours / fused"] = figures["models"][name]["fused"]["ours / it"]
    return found


if __name__ == "__main__":
    sys.exit(main())
