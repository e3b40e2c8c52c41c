"""The GE example and page say what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from samestep.cli import main
from samestep.graph import ge

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "graph_ge.md").read_text(encoding="utf-8")


def test_the_reference_sample(tmp_path):
    found = subprocess.run([sys.executable, ROOT / "examples" / "ge_sgd.py", tmp_path], check=True, capture_output=True,
                           text=True)
    first, *rest = found.stdout.splitlines()
    assert re.fullmatch(r"sgd\.air: 4,\d\d\d bytes, 8 nodes, no rule broken", first)
    assert rest == ["momentum 0.9: parameters 0.635, accum 3.65, stat 0",
                    "momentum 0.0: parameters 0.95, accum 3.5, stat 1"]
    assert len(ge.read(tmp_path / "sgd.air").nodes) == 8
    labels = [re.findall(r"<text [^>]*>(.*?)</text>", path.read_text(encoding="utf-8"))
              for path in (tmp_path / "sgd.svg", ROOT / "docs" / "images" / "graph_ge.svg")]
    assert labels[0] == labels[1] != []


def test_the_page_prints_what_its_comments_say(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    printed: list[str] = []
    exec(block, {"print": lambda *values: printed.append(" ".join(map(str, values)))})
    assert printed == re.findall(r"print\(.*?\)\s*# (.*)", block)
    assert len(printed) == 2


def test_the_page_s_broken_graph(tmp_path, monkeypatch):
    graph = ge.Graph("train")
    w, g, a = graph.data("w", (2, 30)), graph.data("g", (30,)), graph.data("a", (2, 30), "float16")
    graph.output(graph.sgd(w, g, graph.data("rate", (1,)), a, graph.data("momentum", (1,)), a, weight_decay=0.01))
    graph.nodes["sgd"].op.attr["nesterov"].b = True
    graph.nodes["sgd"].op.attr["dampening"].f = 0.5
    ge.write(graph, tmp_path / "broken.air")
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```text\n\$ samestep (.*?)\n(.*?)```", PAGE, re.DOTALL)
    found = CliRunner().invoke(main, block[0].split())
    assert (found.exit_code, found.stdout) == (1, block[1])
