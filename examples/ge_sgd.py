"""The operator's reference sample as a GE graph: built, written as `.air`, read back, checked, drawn and run.

Run it with `python examples/ge_sgd.py [FOLDER]`; it needs `pip install 'samestep[graph]'`. With momentum 0.9 the update
writes parameters, accum and stat; with momentum 0 accum and stat keep what they hold.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from samestep.graph import ge

SHAPE = (2, 30)
VALUES = {"parameters": 1.0, "gradient": 0.5, "learning_rate": 0.1, "accum": 3.5, "momentum": 0.9, "stat": 1.0}
SCALARS = ("learning_rate", "momentum")


def build() -> ge.Graph:
    graph = ge.Graph("train")
    edges = [graph.data(name, (1,) if name in SCALARS else SHAPE, "float32") for name in VALUES]
    graph.output(graph.sgd(*edges))
    ge.infer(graph)
    return graph


def main(folder: Path) -> None:
    path = folder / "sgd.air"
    ge.write(build(), path)
    graph = ge.read(path)
    print(f"{path.name}: {path.stat().st_size:,} bytes, {len(graph.nodes)} nodes, "
          f"{'no rule broken' if ge.lint(graph).clean else 'broken rules'}")
    ge.draw(graph, folder / "sgd.svg")
    for momentum in (0.9, 0.0):
        values = VALUES | {"momentum": momentum}
        feeds = {name: np.full((1,) if name in SCALARS else SHAPE, value, np.float32) for name, value in values.items()}
        (output,) = ge.run(graph, feeds)
        assert output is feeds["parameters"]  # the one output is the memory of parameters; accum and stat are fed, too
        for array in feeds.values():
            assert (array == array.flat[0]).all()
        print(f"momentum {momentum}:", ", ".join(f"{name} {feeds[name].flat[0]:g}"
                                                 for name in ("parameters", "accum", "stat")))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as chosen:
            main(Path(chosen))
