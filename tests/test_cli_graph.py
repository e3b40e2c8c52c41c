"""`samestep graph lint` and `samestep graph show`: what they print, what they refuse, their exit status."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from samestep.cli import main
from samestep.graph import ge


def run(*args):
    return CliRunner().invoke(main, ["graph", *(str(arg) for arg in args)])


def update(name="train"):
    graph = ge.Graph(name)
    w, g, a, s = (graph.data(name, (2, -1)) for name in "wgas")
    rate, momentum = graph.data("rate", ()), graph.constant("momentum", [0.9])
    graph.output(graph.sgd(w, g, rate, a, momentum, s, weight_decay=0.01))
    return graph


@pytest.fixture
def good(tmp_path):
    ge.write(update(), tmp_path / "good.air")
    return tmp_path / "good.air"


@pytest.fixture
def bad(tmp_path):
    """One node with three faults, and a graph with one."""
    graph = update()
    op = graph.nodes["sgd"].op
    op.attr["weight_decay"].f = float("nan")
    op.input[1] = "w:0"
    graph.nodes["a"].op.output_desc[0].dtype = 2
    graph.root.op.add(name="\x1b[31mcast", type="Cast", input=["nobody:0"])
    ge.write(graph, tmp_path / "bad.air")
    return tmp_path / "bad.air"


def test_help_names_the_commands_and_loads_nothing_heavy():
    code = ("import sys; from samestep.cli import main\ntry: main(sys.argv[1:])\nexcept SystemExit: pass\n"
            "print(sorted({'numpy', 'numba', 'torch', 'rich', 'matplotlib', 'google', 'onnx'} & set(sys.modules)))")
    for args in (["--help"], ["lint", "--help"], ["show", "--help"]):
        out = subprocess.run([sys.executable, "-c", code, "graph", *args], check=True, capture_output=True,
                             text=True).stdout
        assert out.strip().endswith("[]")
    assert {"lint", "show"} <= {line.split()[0] for line in run("--help").stdout.splitlines() if line.startswith("  ")}
    assert run("nonsense").exit_code == 2


def test_lint_of_a_good_file(good):
    result = run("lint", good)
    assert result.exit_code == 0, result.output
    assert result.stdout == """\
sgd  in train, K2: dampening 0, weight_decay 0.01, nesterov false
    parameters     w:0         float32   ND  (2, ?)
    gradient       g:0         float32   ND  (2, ?)
    learning_rate  rate:0      float32   ND  ()
    accum          a:0         float32   ND  (2, ?)
    momentum       momentum:0  float32   ND  (1,)
    stat           s:0         float32   ND  (2, ?)

1 SGD node, 0 findings
"""


def test_lint_of_a_bad_file(bad):
    result = run("lint", bad)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0] == "sgd  in train, no kernel: dampening 0, weight_decay nan, nesterov false"
    assert [line.split()[0] for line in lines[7:10]] == ["O1", "O10", "O4"]
    assert lines[7] == "    O1  accum: got dtype float16; accepted: float32, the dtype of parameters [dtype_mismatch]"
    assert lines[11].startswith("graph  graph 'train': node '")
    assert lines[11].endswith("takes 'nobody:0', but there is no node 'nobody'")
    assert lines[12] == "1 SGD node, 4 findings"
    assert "\x1b" not in result.stdout


def test_lint_as_json(good, bad):
    result = run("lint", "--json", bad)
    assert result.exit_code == 1
    facts = json.loads(result.stdout, parse_constant=pytest.fail)
    assert facts["clean"] is False
    (node,) = facts["nodes"]
    assert node["attributes"] == {"dampening": 0.0, "weight_decay": "nan", "nesterov": False}
    assert [finding["rule"] for finding in node["findings"]] == ["O1", "O10", "O4"]
    assert node["inputs"][3] == {"name": "accum", "source": "a:0",
                                 "tensor": {"shape": [2, -1], "dtype": "float16", "format": "ND"}}
    assert len(facts["problems"]) == 1
    assert json.loads(run("lint", "--json", good).stdout)["clean"] is True


def test_names_cannot_steer_the_terminal(tmp_path):
    graph = update("\x1b]0;title\x07")
    graph.nodes["sgd"].op.name = "sgd\x1b[2J"
    graph.root.op[-1].input[0] = "sgd\x1b[2J:0"
    graph.nodes["w"].op.output_desc[0].layout = "\x1b[1m"
    ge.write(graph, tmp_path / "steering.air")
    result = run("lint", tmp_path / "steering.air")
    assert result.exit_code == 1
    assert all(letter.isprintable() or letter == "\n" for letter in result.stdout)
    assert result.stdout.startswith("sgd?[2J  in ?]0;title?, K2")


@pytest.mark.parametrize("command", ["lint", "show"])
def test_what_is_no_graph(command, tmp_path):
    (tmp_path / "broken.air").write_bytes(b"no graph")
    result = run(command, tmp_path / "broken.air")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: {tmp_path / 'broken.air'}: 8 bytes that are no ge.proto.ModelDef (")
    assert result.stderr.count("\n") == 1
    result = run(command, tmp_path / "none.air")
    assert (result.exit_code, result.stderr) == (2, f"Error: cannot read {tmp_path / 'none.air'}: No such file or "
                                                    "directory\n")


def test_show_draws_beside_the_file_or_where_it_is_told(good, tmp_path):
    result = run("show", good)
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path / 'good.svg'}\n")
    assert (tmp_path / "good.svg").read_bytes().startswith(b"<?xml")
    assert run("show", good, "--out", tmp_path / "picture.png").exit_code == 0
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_show_as_text(good):
    result = run("show", "--text", good)
    assert result.exit_code == 0
    assert result.stdout == ge.dump(ge.read(good))


def test_what_show_refuses(good, bad, tmp_path):
    assert run("show", good, "--text", "--out", "x.svg").exit_code == 2
    result = run("show", good, "--out", tmp_path / "x.gif")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "its name ends in .svg, .png, .pdf" in result.stderr
    result = run("show", bad)
    assert result.exit_code == 2
    assert "there is no node 'nobody'" in result.stderr
    result = run("show", good, "--out", tmp_path / "none" / "x.svg")
    assert result.stderr == f"Error: cannot write {tmp_path / 'none' / 'x.svg'}: No such file or directory\n"


@pytest.mark.parametrize(("command", "module", "package"), [
    ("lint", "google.protobuf.descriptor_pool", "protobuf"), ("show", "matplotlib.figure", "matplotlib")])
def test_what_is_missing(command, module, package, good, monkeypatch):
    from samestep.graph import air

    air.messages.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    try:
        result = run(command, good)
    finally:
        air.messages.cache_clear()
    assert result.exit_code == 2
    assert f"graphs need {package}" in result.stderr
    assert "pip install 'samestep[graph]'" in result.stderr
