# Two commands do all the set-up: `make demo` and `make test`. Each brings up .venv by itself.
PYTHON  ?= python3
VENV    ?= .venv
WORKERS ?= 2
TESTERS ?= 2
BIN     := $(VENV)/bin
READY   := $(VENV)/.ready
PIP     := -m pip install --quiet --disable-pip-version-check -c constraints.txt
INSTALL := $(BIN)/python $(PIP)
DOCS    := .venv-docs
PACKAGE := .venv-package

.PHONY: demo serve test test-all coverage mutants frameworks frameworks-soak windows lint docs package bench bench-peers bench-speeds soak model seeds clean
.DEFAULT_GOAL := test

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) "pip>=25.1"
	$(INSTALL) --editable ".[all]" --group dev
	touch $(READY)

demo: $(READY)  ## one batch, with and without paceline, live; ends with a picture
	$(BIN)/paceline demo

serve: $(READY)  ## the gateway with its page; emulated providers and some traffic, unless a key is set
	$(BIN)/paceline serve $(if $(OPENAI_API_KEY)$(ANTHROPIC_API_KEY)$(GEMINI_API_KEY),,--demo)

test: $(READY)  ## the tests of every change; ONLY="tests/core tests/pacing" for a part
	$(BIN)/python -m pytest -n $(TESTERS) --dist worksteal --cpu-limit 2 $(ONLY)

test-all: $(READY)  ## these, and the long ones: worlds of thousands of requests, several processes, real time; more examples of each property
	$(BIN)/python -m pytest -n $(TESTERS) --dist worksteal -m "not soak" --hypothesis-profile all $(ONLY)

frameworks: $(READY)  ## every SDK and framework that CI runs, each in an environment of its own; ENVS="genai mistral" for some
	$(BIN)/python tests/frameworks/run.py $(ENVS)

frameworks-soak: $(READY)  ## those that take long to install
	$(BIN)/python tests/frameworks/run.py --soak

windows: $(READY)  ## the tests with a CPython for Windows, under wine; ONLY="tests/core" for a part
	$(BIN)/python tests/windows/run.py $(ONLY)

coverage: $(READY)  ## every line and branch of paceline.core, by its own tests alone; less than all fails
	$(BIN)/python -m pytest tests/core --cov=paceline.core --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=100

mutants: $(READY)  ## files of the core with one change each: do the tests notice? resumes; ONLY="NAME ..." for some
	$(INSTALL) --group mutants
	$(BIN)/mutmut run --max-children $(WORKERS) $(ONLY)
	$(BIN)/mutmut results

lint: $(READY)  ## style and types, of the doors for users too, and as Windows and macOS have them: a name that is missing there must be guarded
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy && $(BIN)/mypy tests/types/doors.py
	$(BIN)/mypy -p paceline --platform win32 --no-warn-unreachable && $(BIN)/mypy -p paceline --platform darwin --no-warn-unreachable

$(DOCS)/.ready: pyproject.toml constraints.txt
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python $(PIP) "pip>=25.1"
	$(DOCS)/bin/python $(PIP) --editable ".[cli]" --group docs
	touch $@

docs: $(DOCS)/.ready  ## the documentation as a site, in site/VERSION; a warning is an error
	$(DOCS)/bin/python docs/site/build.py build/docs
	$(DOCS)/bin/zensical build --strict --clean --config-file mkdocs.yml
	$(DOCS)/bin/python docs/site/build.py --finish build/site site

package:  ## what is published, in dist/, checked; RELEASE=v0.1.0 also that it can be published as that. And its dependencies as an SBOM
	$(PYTHON) -m venv --clear $(PACKAGE)
	$(PACKAGE)/bin/python $(PIP) "pip>=25.1" && $(PACKAGE)/bin/python $(PIP) --group package
	rm -rf dist && $(PACKAGE)/bin/python -m build --outdir dist
	$(PACKAGE)/bin/twine check --strict dist/* && $(PACKAGE)/bin/check-wheel-contents dist && $(PACKAGE)/bin/pyroma --min 10 dist/*.tar.gz
	$(PYTHON) -m venv --clear $(PACKAGE)-installed
	$(PACKAGE)-installed/bin/python $(PIP) "$$(echo dist/*.whl)[all]"
	mkdir -p build && $(PACKAGE)/bin/cyclonedx-py environment --output-file build/sbom.json $(PACKAGE)-installed/bin/python
	test -z "$(RELEASE)" || test -e "dist/paceline-$(RELEASE:v%=%).tar.gz"  # the tag is the version
	test -z "$(RELEASE)" || ! grep -n example.org pyproject.toml SECURITY.md README.md docs/install.md  # RELEASING.md, step 1

bench: bench-peers bench-speeds  ## both; two hours and three quarters

bench-peers: $(READY)  ## paceline beside its peers on the same workloads: docs/benchmarks_peers.md; two hours and a quarter
	$(BIN)/python -m benchmarks --report docs
	$(BIN)/python -m benchmarks --report docs --gateways

bench-speeds: $(READY)  ## the table of speeds, peers beside it
	$(INSTALL) --group bench
	$(BIN)/python -m benchmarks

soak: $(READY)  ## whole grids of worlds, many seeds, real-time runs of minutes; ONLY="tests/stores" for a part
	$(BIN)/python -m pytest -m soak $(ONLY)

model:  ## another model in all pages, examples, messages and their tests: make model OLD=gpt-6-luna NEW=gpt-7-luna
	git grep -lIwF $(OLD) -- README.md docs examples src tests ':!src/paceline/providers' ':!tests/providers' | xargs sed -i 's/\b$(subst .,\.,$(OLD))\b/$(NEW)/g'

seeds: $(READY)  ## random worlds: 10,000 seeds; COUNT=500 START=10000 for others
	$(BIN)/python -m tests.simulation.seeds --start $(or $(START),0) --count $(or $(COUNT),10000) --jobs $(WORKERS)

clean:
	rm -rf $(VENV) $(DOCS) $(PACKAGE) $(PACKAGE)-installed .venv-frameworks mutants build dist site .cache .mypy_cache .ruff_cache .pytest_cache
