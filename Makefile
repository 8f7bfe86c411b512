# make demo: a deep Transformer before and after de-escalation, out/report.html and out/demo.png
# make test: ruff, mypy and every test that is neither long nor of pages, 5 to 6 minutes on 2 cores
# make test-pages: pages in headless Chromium, which is installed where it is missing and apt-get is there; CI runs it
# make test-long: the tests marked long: whole experiments, trainings, several processes; CI runs all three
# make coverage: scan, fix and forecast on many models and spellings, held to a truth of its own: docs/coverage.md
# make faults: commands killed 50 times, full disks, damage, two in a folder, a jumping clock (half an hour)
# make fuzz: more than 20,000 odd, damaged and hostile inputs, and models that chance writes (about half an hour)
# make load: what many batches and a long monitor keep in memory; threads; a fork
# make matrix: the fast tests in environments of several Pythons and torches; says what is missing
# make mutants: the package broken in 300 places, one at a time, and which the tests notice: docs/reliability.md
# make scale: comparisons, a search and a training by Dask, PostgreSQL, torchrun, submitit, MPI; servers on loopback
# make bench: what scans, remedies, forecasts and training cost: docs/benchmarks.md (about half an hour on 2 cores)
# make tutorials: the notebooks of docs/tutorials run again, their outputs written
# make package: wheel and sdist into dist/, built twice and compared, tried in an empty environment
# make docs: the site, out/site, built strictly and offline, its links checked; docs/reference is renewed from the code
# All create .venv and install what they need.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-pages test-long coverage faults fuzz load matrix mutants scale bench docs tutorials package clean

demo: .venv/demo
	$(BIN)/depthscope scan classic --depth 24 --fix de_escalate --tau 1 --out out/report.html --out out/demo.png

test: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPY_NUM_WORKERS=2 $(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not long and not pages"

test-pages: .venv/test
	tools/chromium.sh
	$(BIN)/python -m pytest tests/pages -rs

test-long: .venv/test
	$(BIN)/python -m pytest -n 2 --dist worksteal -m long

coverage: .venv/test
	$(BIN)/python tools/coverage/run.py --table docs/coverage.md

faults: .venv/test
	$(BIN)/python tools/faults/run.py --write

fuzz: .venv/test
	$(BIN)/python tools/fuzz/run.py --write

load: .venv/test
	$(BIN)/python tools/load/run.py --write

matrix:
	$(PYTHON) tools/matrix.py --write

mutants: .venv/test
	$(BIN)/python tools/mutants/run.py --table docs/reliability.md

scale: .venv/scale
	$(BIN)/python tools/scale/run.py

bench: .venv/test
	$(BIN)/python benchmarks/page.py

tutorials: .venv/test
	$(BIN)/python tools/tutorials.py

package: .venv/test
	$(BIN)/python tools/package.py

docs: .venv/docs
	$(BIN)/python tools/site/reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python tools/site/links.py out/site
	@echo "open out/site/index.html"

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/demo: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) torch==2.13.0
	$(PIP) --editable ".[plot,report]"
	touch $@

.venv/test: .venv/demo
	$(PIP) --editable ".[hf,plot,report,train,integrations,dev]"
	touch $@

.venv/docs: .venv/demo
	$(PIP) --editable ".[plot,report,hf,train,lightning,integrations,docs]"
	touch $@

.venv/scale: .venv/test
	$(PIP) --editable ".[scale]" psycopg2-binary
	touch $@

clean:
	rm -rf .venv out build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis src/*.egg-info
