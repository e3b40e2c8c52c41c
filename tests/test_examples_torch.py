"""The examples for graphs of torch: run as a user runs them, they print what the documentation shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "graph_torch.md").read_text(encoding="utf-8")


def run(*arguments, **settings):
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, **settings)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_compiled_training():
    shown = re.search(r"python examples/compiled_training.py`.*?```text\n(.*?)```", PAGE, re.DOTALL)[1]
    printed = run(str(ROOT / "examples" / "compiled_training.py"))
    assert printed.splitlines()[1:] == shown.splitlines()[1:]  # the losses have the bits of a machine's own matmul
    assert printed.count(" 0 of 28,830 elements differ") == 3


def test_the_code_of_the_page(tmp_path):
    """One script of all the blocks, in order; what a comment says is printed is printed."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    (tmp_path / "page.py").write_text(code, encoding="utf-8")
    printed = run("page.py", cwd=tmp_path)
    expected = re.findall(r"print\(.*\)\s+# (.*)", code)
    assert printed.splitlines() == expected
    assert len(expected) >= 3
