# The two commands to know: make demo, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# torch comes from the constraint, so that no other build of it is ever chosen.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint verify-full test-gpu verify-gpu-code verify-ascend device bench clean

demo: $(VENV)/demo.stamp
	$(BIN)/samestep demo --out out/demo

test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/mypy --strict src
	$(BIN)/lint-imports --no-cache

# All bit patterns and the long samples; some minutes.
verify-full: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m exhaustive

# The gpu engine in Triton's interpreter, without a GPU. Triton is large, so it gets an environment of its own, on top.
test-gpu: $(VENV)/triton.stamp
	$(VENV)/triton/bin/python -m pytest -q -n 2 tests/gpu

# What Triton and ptxas make of the kernels for GPUs; no GPU is needed.
verify-gpu-code: $(VENV)/triton.stamp
	SAMESTEP_COMPILERS=required $(VENV)/triton/bin/python -m pytest -q -m "exhaustive or not exhaustive" \
		tests/lowering/test_gpu_code.py

# The kernels for Ascend 950: what its compilers make of them, and their bits, on the CPU. Installs Debian packages (root).
verify-ascend: $(VENV)/triton.stamp
	tests/lowering/install_ascend.sh $(VENV)/ascend $(BIN)/python
	SAMESTEP_COMPILERS=required SAMESTEP_ASCEND_TOOLS=$(VENV)/ascend $(VENV)/triton/bin/python -m pytest -q \
		tests/lowering tests/test_cli_lower.py --ignore tests/lowering/test_gpu_code.py

# On a machine with an NVIDIA GPU, with the packages that are there: bits, then speed, in one go of some minutes.
device:
	PYTHONPATH=src $(PYTHON) bench/device.py --out out/device.json

# Speed: all 200 cases against every peer, which are large, so they get an environment of their own, on top.
bench: $(VENV)/bench.stamp
	$(VENV)/bench/bin/python -m samestep bench --out out/bench

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo.stamp: $(VENV)/bin/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[demo]'
	touch $@

$(VENV)/dev.stamp: $(VENV)/bin/python pyproject.toml constraints.txt
	$(INSTALL) torch
	$(INSTALL) -e '.[dev]'
	touch $@ $(VENV)/demo.stamp

# An environment that sees the packages of .venv and has more of its own.
define on_top
	$(PYTHON) -m venv $(VENV)/$(1)
	echo "$(CURDIR)"/$(VENV)/lib/python3.*/site-packages > "$$(echo $(VENV)/$(1)/lib/python3.*/site-packages)/below.pth"
	echo "$(CURDIR)/src" >> "$$(echo $(VENV)/$(1)/lib/python3.*/site-packages)/below.pth"
endef

$(VENV)/triton.stamp: $(VENV)/dev.stamp
	$(call on_top,triton)
	$(VENV)/triton/bin/python -m pip install --quiet --disable-pip-version-check --no-deps triton==3.9.0
	touch $@

$(VENV)/bench.stamp: $(VENV)/dev.stamp
	$(call on_top,bench)
	$(VENV)/bench/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		jax optax keras pytorch_optimizer tinygrad
	touch $@

clean:
	rm -rf $(VENV) out
