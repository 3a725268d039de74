# Everything sets itself up: a machine with Python 3.11+ and make is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := runs/demo

SUPPLY := .venv-supply
unexport PYTHONDONTWRITEBYTECODE  # without bytecode each worker of pytest compiles and rewrites all tests anew: 20 s

.PHONY: demo test test-slow test-faults check format docs docs-serve release bench lock sbom audit-packages clean

$(VENV)/.run: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip -c constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

$(VENV)/.dev: $(VENV)/.run
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/.run  ## train FedE on the embedded hospitals, attack it, print what leaked and what joining is worth
	rm -rf $(RUN)
	$(BIN)/fkgsec attack --target fede --leak 0.5 --rounds 60 --out $(RUN)

test: $(VENV)/.dev  ## all tests but those marked slow or gpu
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

test-slow: $(VENV)/.dev  ## the long ones; give FKGSEC_DATA for those on published data
	$(BIN)/python -m pytest -q -m slow

check: $(VENV)/.dev  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.dev  ## build the documentation into site/; a dead link or a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs-serve: $(VENV)/.dev  ## show the documentation on http://127.0.0.1:8000 while it is written
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

test-faults: $(VENV)/.dev  ## damaged files, hostile names, containers, kills, full disks, two writers: thousands of them
	$(BIN)/python -m pytest -q tests/faults -m "slow or not slow"

release: $(SUPPLY)/.made  ## dist/release: sdist and wheel, metadata checked, tried in a fresh environment without the checkout
	rm -rf dist/release
	$(SUPPLY)/bin/python -m build --outdir dist/release  # the wheel is made from the sdist, not from what lies in build/
	$(SUPPLY)/bin/python -m twine check --strict dist/release/*
	set -e; tried=$$(mktemp -d); trap 'rm -rf "$$tried"' EXIT; \
	$(PYTHON) -m venv $$tried/venv; \
	$$tried/venv/bin/python -m pip install --quiet -c constraints.txt dist/release/*.whl; \
	$$tried/venv/bin/python -m pip check; \
	cp examples/policy.yaml $$tried; cd $$tried; set -x; \
	venv/bin/fkgsec --version; \
	venv/bin/fkgsec attack --target fede --leak 0.5 --rounds 60 --out demo; \
	venv/bin/fkgsec check policy.yaml; \
	venv/bin/fkgsec report demo --out report.html

bench: $(VENV)/.dev  ## seconds per round and per ranking beside this machine's floor, and beside PyKEEN's
	$(BIN)/python -m benchmarks.rounds
	$(BIN)/python -m benchmarks.graphs
	$(BIN)/python -m benchmarks.protocols
	$(BIN)/python -m benchmarks.sessions
	$(BIN)/python -m benchmarks.unlearning
	$(BIN)/python -m benchmarks.peers.pykeen --batches 20 --ranked 500

$(SUPPLY)/.made: constraints.txt  # an environment of its own: its packages are none of ours
	$(PYTHON) -m venv $(SUPPLY)
	$(SUPPLY)/bin/python -m pip install --quiet -c constraints.txt build twine pip-tools cyclonedx-bom pip-audit
	touch $@

COMPILE := -m piptools compile --quiet --strip-extras --generate-hashes --allow-unsafe --no-emit-options --no-header \
  --constraint constraints.txt --extra rdf

lock: $(SUPPLY)/.made  ## pin every package that we and the tests need, with its hashes, and of these apart what a run needs
	$(SUPPLY)/bin/python $(COMPILE) --extra dev --output-file requirements.compiled pyproject.toml
	cp requirements.compiled requirements.run.compiled  # from which pins and hashes of the second are taken
	$(SUPPLY)/bin/python $(COMPILE) --no-annotate --output-file requirements.run.compiled pyproject.toml
	for lock in requirements requirements.run; do \
	  sed '/^#/!q' $$lock.lock | grep '^#' > $$lock.head && cat $$lock.head $$lock.compiled > $$lock.lock || exit 1; \
	  rm $$lock.head $$lock.compiled; \
	done  # what stands above the first package stays

sbom: $(SUPPLY)/.made $(VENV)/.run  ## dist/fkgsec.cdx.json: a bill of materials (CycloneDX) of what is installed
	mkdir -p dist
	$(SUPPLY)/bin/cyclonedx-py environment $(VENV) --pyproject pyproject.toml --output-reproducible --of JSON \
	  -o dist/fkgsec.cdx.json

audit-packages: $(SUPPLY)/.made  ## known vulnerabilities of what requirements.lock names; fails where nobody can be asked
	$(SUPPLY)/bin/pip-audit --strict --requirement requirements.lock --disable-pip --require-hashes

clean:
	rm -rf $(VENV) $(SUPPLY) build dist site *.egg-info .pytest_cache .ruff_cache
