"""`samestep bench` as a user meets it; measuring itself is stood in for by a made-up file."""

from __future__ import annotations

import json
import re
import sys

import pytest
from click.testing import CliRunner

from bench import made_up
from samestep.bench import cases, one_case, plots, run
from samestep.cli.bench import bench

RESULTS = made_up.results()


plans = []  # seconds a case


@pytest.fixture
def measured(monkeypatch):
    """`run.run` that measures nothing; what it was asked for."""
    asked = []

    def stand_in(suites, quick, peers, threads, out, watch, names, *, plan):
        watch(0, 4, "first")
        watch(4, 4, "last")
        asked.append((suites, quick, peers, threads, names))
        plans.append(plan.seconds)
        (out / "results.json").write_text(json.dumps(RESULTS), encoding="utf-8")
        return RESULTS

    monkeypatch.setattr(run, "run", stand_in)
    return asked


def refuse(monkeypatch, error):
    def stand_in(*_, **__):
        raise error

    monkeypatch.setattr(run, "run", stand_in)


def invoke(*arguments):
    return CliRunner().invoke(bench, [*map(str, arguments)], catch_exceptions=False)


def test_a_run_is_shown_and_written(measured, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    monkeypatch.delitem(plots.PICTURES, "roofline")  # which take long to draw
    monkeypatch.delitem(plots.PICTURES, "ratios")
    out = tmp_path / "new" / "folder"
    result = invoke("--out", out, "--threads", "1,2,1", "--peers", "JAX", "--peers", "NumPy", "--peers", "JAX")
    assert result.exit_code == 0, result.output
    assert measured == [(("op", "optim"), False, ["JAX", "NumPy"], [1, 2], None)]
    for part in ("optimizer, 2 threads: samestep's time / the time of", "geometric mean", "slower cases",
                 "812 s in all. Written:"):
        assert part in result.stdout
    names = re.findall(rf"^  {re.escape(str(out))}/(.*)$", result.stdout, re.MULTILINE)
    assert names[:2] == ["results.json", "index.html"]
    assert sorted(names) == sorted(path.name for path in out.iterdir())
    assert {name.partition(".")[2] for name in names[2:]} == {"svg", "png"}


def test_without_matplotlib_it_says_so_first_and_writes_the_rest(measured, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = invoke("--out", tmp_path, "--suite", "op", "--quick", "--threads", "2")
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith("There will be no pictures: pictures need matplotlib")
    assert "pip install matplotlib" in result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "index.html"}
    assert measured == [(("op",), True, None, [2], None)]


@pytest.mark.parametrize(("options", "seconds"), [((), 3.0), (("--quick",), 0.25), (("--seconds", "0.5"), 0.5),
                                                  (("--quick", "--seconds", "2"), 2.0)])
def test_seconds_of_a_case(measured, tmp_path, monkeypatch, options, seconds):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert invoke("--out", tmp_path, *options).exit_code == 0
    assert plans[-1] == seconds


def test_all_shows_every_case(measured, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = invoke("--out", tmp_path, "--all")
    assert result.stdout.count("op float32 K0 1 ") == 2
    assert "…" not in result.stdout


def test_cases_by_a_part_of_their_names(measured, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    invoke("--out", tmp_path, "--case", "RESNET-50", "--suite", "op")
    expected = [case.name for case in cases.CASES if case.suite == "op" and "ResNet-50" in case.shape]
    assert measured[0][4] == expected
    assert len(expected) > 5


def test_red_verification_ends_it_and_no_time_is_shown(monkeypatch, tmp_path):
    refuse(monkeypatch, one_case.RefusedError("op float32 K0 7: 3 of 7 compared elements of samestep differ"))
    result = invoke("--out", tmp_path)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "Nothing is timed, since samestep's results are not right:" in result.stderr
    assert "op float32 K0 7: 3 of 7 compared elements of samestep differ" in result.stderr
    assert not re.search(r"\d (s|ms|µs|ns)\b", result.output)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("arguments", "message"), [
    (["--suite", "operator"], "'operator' is not one of 'op', 'optim', 'all'"),
    (["--threads", "two"], "'two'; accepted: numbers above 0 with commas between, such as 1,2"),
    (["--threads", "0"], "accepted: numbers above 0"),
    (["--threads", "1,,2"], "accepted: numbers above 0"),
    (["--threads", "\u00b2"], "accepted: numbers above 0"),
    (["--threads", "99999"], "99999 threads: this process may use"),
    (["--peers", "Torch"], "there is no peer 'Torch'; the peers are NumPy, torch eager"),
    (["--suite", "op", "--peers", "optax"], "there is no peer 'optax'; the peers are NumPy"),
    (["--case", "float8"], "no case has 'float8' in its name; there are 200, such as 'op float32 K0 1'"),
])
def test_what_does_not_exist_is_refused_with_what_does(arguments, message, tmp_path):
    result = invoke("--out", tmp_path / "out", *arguments)
    assert result.exit_code == 2
    assert message in re.sub(r"\s+", " ", result.stderr)
    assert "Traceback" not in result.output


def test_a_folder_that_cannot_be_written_is_refused_before_the_run(measured, tmp_path):
    (tmp_path / "file").write_text("")
    result = invoke("--out", tmp_path / "file" / "out")
    assert result.exit_code == 2
    assert f"cannot write to {tmp_path / 'file' / 'out'}: Not a directory" in result.stderr
    assert measured == []


@pytest.mark.parametrize(("error", "message"), [
    (RuntimeError("start-up, import torch: the process ended"), "Error: start-up, import torch: the process ended"),
    (KeyboardInterrupt(), "Error: interrupted; nothing was written"),
])
def test_what_goes_wrong_underway_is_no_traceback(monkeypatch, tmp_path, error, message):
    refuse(monkeypatch, error)
    result = invoke("--out", tmp_path)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, slower in zip(paths, (1, 1.2), strict=True):
        results = made_up.results(slower=slower)
        for one in results["runs"]:
            del one["cases"][30:]
        path.write_text(json.dumps(results), encoding="utf-8")
    return paths


def test_comparing_two_files(files):
    result = invoke("--compare", *files)
    assert result.exit_code == 0
    assert "time: 0 became less, 60 more" in result.stdout
    assert "smaller moves; --all lists them" in result.stdout
    assert "smaller moves" not in invoke("--compare", *files, "--all").stdout


def test_comparing_goes_with_nothing_else(files):
    result = invoke("--compare", *files, "--quick")
    assert result.exit_code == 2
    assert "--compare measures nothing, so --quick has no meaning beside it; --all has" in result.stderr


def test_a_file_that_is_none_is_refused(files, tmp_path):
    for content, message in (('{"schema": 7}', "schema 7; this version reads schema 1"), ("{", "was cut short")):
        files[1].write_text(content, encoding="utf-8")
        result = invoke("--compare", *files)
        assert result.exit_code == 2
        assert message in result.stderr
        assert str(files[1]) in result.stderr
    assert "No such file" in invoke("--compare", files[0], tmp_path / "c.json").stderr
