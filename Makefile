# Everything here needs only Python >= 3.11 and make; each target makes its own environment.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
JUDGES ?= .venv-conformance
PAGES  ?= .venv-browser
# Its wheel says 3.11 and Linux and holds pure Python.
OPENRLHF_WHEEL = --only-binary=:all: --implementation cp --python-version 3.11 --platform manylinux1_x86_64
QUICK_SCENARIO ?= sims/scenarios/gemma4-12b-gpqa.toml
DUMP   ?= sims/rollouts/toy_run.parquet

.PHONY: lab test check mutants validate coverage conformance browser bench clean

$(VENV)/.core: pyproject.toml requirements/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dapolab needs Python 3.11 or newer; set PYTHON=")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c requirements/constraints.txt -e .
	@touch $@

$(VENV)/.test: $(VENV)/.core
	$(BIN)/python -m pip install -q --disable-pip-version-check -c requirements/constraints.txt -e '.[test]'
	@touch $@

lab: $(VENV)/.core  ## the main job: policies compared on a public model's answers, and on our own run's dump
	$(BIN)/dapolab compare $(QUICK_SCENARIO) --collectors all -o reports
	$(BIN)/dapolab fit $(DUMP) --draws 200 -o runs/lab/toy.toml
	$(BIN)/dapolab compare sims/scenarios/toy-digit-sum.toml --workload runs/lab/toy.toml --collectors all -o reports

check: $(VENV)/.test  ## style, types, architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check  ## everything that gates a change
	$(BIN)/python -m pytest -n 2

mutants: $(VENV)/.test  ## wrong objectives, one after the other: each must turn a test red
	$(BIN)/python -m tests.mutants

# The kernel's lines are compiled, and seen only where numba leaves them to Python: slow, so its own tests.
KERNEL_TESTS = tests/test_decode_engine.py tests/test_engine_calls.py tests/test_engine_keep.py \
  tests/properties/test_decode_judge.py tests/properties/test_decode_calls.py
coverage: $(VENV)/.test  ## lines of dapolab that the tests run
	$(BIN)/python -m pytest -n 2 -q -o filterwarnings= --cov=dapolab --cov-report= --ignore=tests/benchmarks
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -n 2 -q -o filterwarnings= --cov=dapolab --cov-append \
	  --cov-report=term:skip-covered --cov-fail-under=95 $(KERNEL_TESTS)

validate: $(VENV)/.test  ## predictions, real training, comparison: the quick size of reports/predicted_vs_measured
	$(BIN)/python -m gpu_runs validate toy_cpu --quick --device cpu -o runs/validation

$(JUDGES)/.ready: requirements/conformance.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)) and "make conformance needs Python 3.11 or 3.12 (verl 0.9.1 and TRL 1.16.0 run there); set PYTHON=")'
	@test -x $(JUDGES)/bin/python || $(PYTHON) -m venv $(JUDGES)
	$(JUDGES)/bin/python -m pip install -q --disable-pip-version-check -r requirements/conformance.txt
	$(JUDGES)/bin/python -m pip install -q --disable-pip-version-check --no-deps verl==0.9.1
	$(JUDGES)/bin/python -m pip install -q --disable-pip-version-check --no-deps $(OPENRLHF_WHEEL) \
	  --target "$$($(JUDGES)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" openrlhf==0.11.2
	$(JUDGES)/bin/python -m pip install -q --disable-pip-version-check --no-deps -e .
	@touch $@

conformance: $(JUDGES)/.ready  ## the objective judged by the real verl, TRL and OpenRLHF, in their own environment
	$(JUDGES)/bin/python -m pytest -c tests/conformance/pytest.ini tests/conformance

$(PAGES)/.ready: requirements/browser.txt
	@test -x $(PAGES)/bin/python || $(PYTHON) -m venv $(PAGES)
	$(PAGES)/bin/python -m pip install -q --disable-pip-version-check -r requirements/browser.txt
	@touch $@

browser: $(PAGES)/.ready  ## every page of reports/ in a real Chromium; CHROMIUM= names another than Debian's
	$(PAGES)/bin/python -m pytest -c tests/browser/pytest.ini tests/browser

bench: $(VENV)/.test  ## speed ratios, each measured in one run
	$(BIN)/dapolab bench

clean:
	rm -rf $(VENV) $(JUDGES) $(PAGES) .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
