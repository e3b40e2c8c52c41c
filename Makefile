# The two commands to know: make demo, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# torch comes from the constraint, so that no other build of it is ever chosen.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint verify-full bench-op bench-optim clean

demo: $(VENV)/demo.stamp
	$(BIN)/samestep demo --out out/demo

test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -q

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/mypy --strict src
	$(BIN)/lint-imports --no-cache

# All bit patterns and the long samples; some minutes.
verify-full: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -q -m exhaustive

# Speed; figures are ratios over fresh processes: the operator against its in-run limit, the optimizer against torch.
bench-op: $(VENV)/dev.stamp
	$(BIN)/python bench/op.py

bench-optim: $(VENV)/dev.stamp
	$(BIN)/python bench/optim.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo.stamp: $(VENV)/bin/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[demo]'
	touch $@

$(VENV)/dev.stamp: $(VENV)/bin/python pyproject.toml constraints.txt
	$(INSTALL) torch
	$(INSTALL) -e '.[dev]'
	touch $@ $(VENV)/demo.stamp

clean:
	rm -rf $(VENV) out
