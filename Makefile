# Every target sets itself up: it needs python3 (3.11 or newer) and make, nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1

.PHONY: demo test stress browser cluster dist oldest site check lint fix setup clean

demo: setup
	$(BIN)/fewtags demo

test: setup
	$(BIN)/python -m pytest tests src --doctest-modules -n 2 --dist loadfile --jaxtyping-packages=fewtags.losses,fewtags.stores,fewtags.metrics,fewtags.geometry,fewtags.batched_views,fewtags.nets,fewtags.objectives,beartype.beartype

# Kills, damaged files and full disks; docs/reliability.md has the figures of longer runs.
stress: setup
	$(BIN)/python tests/stress/photos.py 3000
	$(BIN)/python tests/stress/labels.py 3000
	$(BIN)/python tests/stress/kills.py 20
	$(BIN)/python tests/stress/predict_kills.py 20
	$(BIN)/python tests/stress/runfiles.py 60
	$(BIN)/python tests/stress/disks.py 12
	$(BIN)/python tests/stress/commands.py
	$(BIN)/python tests/stress/photo_memory.py 4
	$(BIN)/python tests/stress/review_kills.py 200

# The review page in Chromium (CHROMIUM=/path; apt-get install chromium).
browser: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements/lock.txt playwright
	$(BIN)/python -m pytest tests/review/browser.py

# Prediction on a local Ray cluster, and a job of submitit's local executor; Ray gets an environment of its own (350 MB).
cluster: setup
	$(BIN)/python scripts/cluster.py

# The wheel, built and used in a new environment; `make dist FULL=--full` also installs its dependencies anew.
dist: setup
	$(BIN)/python scripts/dist.py $(FULL)

# The tests with the oldest allowed versions of the dependencies, in a new environment (downloads several GB).
oldest: setup
	$(BIN)/python scripts/oldest.py --python $(PYTHON)

# The documentation as a site, in site/.
site: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements/lock.txt mkdocs-material
	$(BIN)/python scripts/site.py

check: lint
	$(BIN)/python -m pytest tests/docs

lint: setup
	$(BIN)/ruff format --check src tests benchmarks scripts
	$(BIN)/ruff check src tests benchmarks scripts
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

fix: setup
	$(BIN)/ruff format src tests benchmarks scripts
	$(BIN)/ruff check --fix src tests benchmarks scripts

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml requirements/lock.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fewtags needs Python 3.11 or newer, %s is %d.%d; call make PYTHON=python3.11" % (sys.executable, *sys.version_info[:2]))'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements/lock.txt torch torchvision
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements/lock.txt -e '.[dev,heif,offline]'
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
