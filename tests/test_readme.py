"""What the README shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

import samestep

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_example_prints_what_its_comments_say():
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    printed = []
    exec(block, {"print": lambda *values: printed.append(" ".join(map(str, values)))})
    assert printed == re.findall(r"print\(.*?\)\s+# (.*)", block)
    assert len(printed) == 2


def test_the_error_reads_as_shown():
    parameters, accum = np.ones((2, 30), np.float32), np.ones((2, 30), np.float32)
    try:
        samestep.sgd_(parameters, parameters[:1].copy(), 0.1, accum, 0.9, np.ones((2, 30), np.float32))
    except samestep.ContractError as error:
        shown = f"{type(error).__module__}.{type(error).__qualname__}: {error}"
    assert shown in README


def test_every_public_name_is_mentioned():
    for name in ("sgd_", "sgd_batch_", "engines", "infer", "legal_keys", "encode", "decode", "set_num_threads",
                 "ContractError"):
        assert f"{name}" in README
        assert name in samestep.__all__
