"""The shape of the tree: small files, one formula, cheap imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import samestep

PACKAGE = Path(samestep.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
NAMES = [str(path.relative_to(PACKAGE)) for path in FILES]
# accum*m in any spelling: the heart of the update.
ARITHMETIC = re.compile(r"\b(a|accum|accum_t|b|buf|momentum_buffer)\b *\* *\b(m|mom|momentum)\b")


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_files_and_functions_are_small(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 300
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[1].lineno if ast.get_docstring(node) and len(node.body) > 1 else node.lineno
            assert node.end_lineno - first < 40, node.name


# rules/ holds other frameworks' updates, which no engine runs.
@pytest.mark.parametrize("path", [path for path in FILES if path.parent.name != "rules"], ids=lambda path: path.stem)
def test_the_arithmetic_stands_in_the_formula_only(path):
    code = ast.unparse(without_docstrings(ast.parse(path.read_text())))  # comments are gone too
    found = ARITHMETIC.search(code)
    assert bool(found) == (path.name == "formula.py")


def without_docstrings(tree):
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def test_the_formula_imports_nothing_and_holds_no_float():
    tree = ast.parse((PACKAGE / "formula.py").read_text())
    for node in ast.walk(tree):
        assert not isinstance(node, (ast.Import, ast.ImportFrom))
        assert not (isinstance(node, ast.Constant) and isinstance(node.value, (int, float)))


def test_only_the_contract_refuses():
    for path in FILES:
        if path.name not in ("contract.py", "__init__.py"):
            assert "ContractError(" not in path.read_text(), path


def test_importing_the_package_loads_nothing_heavy():
    script = (
        "import sys, samestep\n"
        "print([name for name in ('numpy', 'numba', 'torch', 'click', 'ml_dtypes', 'rich') if name in sys.modules])\n"
        "assert 'sgd_' in dir(samestep)\n"
        "samestep.infer((2,), (2,), (), (2,), (), (2,))\n"
        "print('numba' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "False"]


def test_public_names_exist():
    for name in samestep.__all__:
        assert getattr(samestep, name).__doc__ or name.isupper()
    script = "import samestep; print(samestep.optim.SGD.__name__, 'optim' in dir(samestep))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["SGD", "True"]
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = samestep.nonsense
