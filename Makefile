# Two commands do all the set-up: `make demo` and `make test`. Each brings up .venv by itself.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test frameworks frameworks-soak lint bench soak clean
.DEFAULT_GOAL := test

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip>=25.1" -c constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --editable ".[all]" --group dev
	touch $(READY)

demo: $(READY)  ## one batch, with and without paceline, live; ends with a picture
	$(BIN)/paceline demo

test: $(READY)  ## the whole suite, in two processes; ONLY="tests/core tests/shell" for a part
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ONLY)

frameworks: $(READY)  ## every SDK and framework that CI runs, each in an environment of its own; ENVS="genai mistral" for some
	$(BIN)/python tests/frameworks/run.py $(ENVS)

frameworks-soak: $(READY)  ## those that take long to install
	$(BIN)/python tests/frameworks/run.py --soak

lint: $(READY)  ## style and types
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy

bench: $(READY)  ## the table of speeds, peers beside it
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --group bench
	$(BIN)/python -m benchmarks

soak: $(READY)  ## real-time runs of minutes
	$(BIN)/python -m pytest -m soak

clean:
	rm -rf $(VENV) .venv-frameworks build dist .mypy_cache .ruff_cache .pytest_cache
