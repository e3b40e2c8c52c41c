"""A stand-in for a program in any language that makes one step of SGD on .npy files: one folder a line of its input.

It computes in float64 and rounds once at the end: more exact than the operator, and so not the same.
"""

import json
import sys
from pathlib import Path

import ml_dtypes
import numpy as np

TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def step(folder: Path) -> None:
    attributes = json.loads((folder / "attributes.json").read_text())
    dtype = TYPES[attributes["dtype"]]
    p, g, lr, a, m, s = (np.load(folder / f"{name}.npy").view(dtype).astype(np.float64) for name in
                         ("parameters", "gradient", "learning_rate", "accum", "momentum", "stat"))
    d, wd = (np.float64(np.float32(attributes[name])) for name in ("dampening", "weight_decay"))
    grad = g + p * wd if wd else g
    velocity = a * m + grad
    if d:
        velocity = velocity - grad * (1 - s) * d
    change = grad * lr + velocity * m * lr if attributes["nesterov"] else velocity * lr
    written = {"parameters": p - change}
    if m[0] != 0:
        written |= {"accum": velocity, "stat": np.zeros_like(s)}
    for name, values in written.items():
        rounded = values.astype(dtype)
        np.save(folder / f"{name}.npy", rounded.view(np.uint16) if attributes["dtype"] == "bfloat16" else rounded)


if __name__ == "__main__":
    np.seterr(all="ignore")
    for line in sys.stdin:
        step(Path(line.rstrip("\n")))
        print("done", flush=True)
