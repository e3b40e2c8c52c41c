"""The ONNX example and page say what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from samestep.cli import main
from samestep.graph.dag import dag, write

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "graph_onnx.md").read_text(encoding="utf-8")


def test_the_example(tmp_path):
    found = subprocess.run([sys.executable, ROOT / "examples" / "onnx_sgd.py", tmp_path / "sgd.onnx"], check=True,
                           capture_output=True, text=True)
    lines = found.stdout.splitlines()
    assert [line.split(": ")[1].split(" of ")[0] for line in lines[:4]] == ["0"] * 4
    assert [line.split(": ")[1] for line in lines[4:6]] == ["0.635 3.65 0"] * 2
    assert "onnxruntime" in lines[1]
    assert lines[6].startswith("the standard Momentum differs from SGD here: ")
    assert (tmp_path / "sgd.onnx").exists()


def test_the_page_prints_what_its_comments_say():
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    printed: list[str] = []
    exec(block, {"print": lambda *values: printed.append(" ".join(map(str, values)))})
    assert printed == re.findall(r"print\(.*?\)\s*# (.*)", block)
    assert len(printed) == 2


def test_the_page_s_command():
    (block,) = re.findall(r"```text\n\$ samestep (.*?)\n(.*?)```", PAGE, re.DOTALL)
    found = CliRunner().invoke(main, block[0].split())
    shown = [line for line in block[1].splitlines() if line != "..."]
    assert set(shown) <= set(found.output.splitlines())
    assert len(shown) == 7


def test_the_page_s_picture_is_current(tmp_path):
    write(dag("K3"), tmp_path / "kernel.svg")
    labels = [re.findall(r"<!-- (.*?) -->", path.read_text(encoding="utf-8"))
              for path in (tmp_path / "kernel.svg", ROOT / "docs" / "images" / "kernel_K3.svg")]
    assert labels[0] == labels[1] != []
