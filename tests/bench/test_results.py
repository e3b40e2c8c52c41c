"""What surrounds the measured cases in the results file."""

from __future__ import annotations

import datetime
import json

import numpy as np
import pytest

import samestep
from samestep.bench import method, reading, results
from samestep.engine import cpu


def test_results_say_when_where_and_with_what():
    found = results.of([], quick=True)
    reading.check(found)
    age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(found["created"])
    assert abs(age) < datetime.timedelta(minutes=1)
    assert (found["schema"], found["quick"]) == (1, True)
    assert found["versions"]["samestep"] == samestep.__version__
    assert found["versions"]["numpy"] == np.__version__
    assert not {None, ""} & set(found["versions"].values())
    assert found["machine"]["cores"] == len(method.usable())
    assert found["machine"]["processor"]


def test_caches_are_told_in_bytes():
    caches = cpu.caches()
    assert all(size >= 8 << 10 and size % 1024 == 0 for size in caches.values())
    assert list(caches) == sorted(caches)


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a" / "results.json"
    results.save({"x": 1}, path)
    assert json.loads(path.read_text()) == {"x": 1}
    with pytest.raises(ValueError, match="JSON compliant"):
        results.save({"x": float("nan")}, path)
    assert json.loads(path.read_text()) == {"x": 1}
    assert [each.name for each in path.parent.iterdir()] == ["results.json"]
