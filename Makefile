# What there is to do here. `make help` lists it; every target sets up .venv first if need be.
BIN := .venv/bin/
# 3.15 has no wheels of torch, Triton and numba-cuda yet.
NEW_ENOUGH := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))
PYTHON ?= $(shell for name in python3.13 python3.12 python3.11 python3.14 python3; do \
	$$name -c '$(NEW_ENOUGH)' 2>/dev/null && echo $$name && break; done)
PYTEST := $(BIN)python -m pytest
NBVAL := $(PYTEST) -n 2 --dist loadscope --no-loadscope-reorder \
	--nbval --nbval-current-env --nbval-cell-timeout=600 notebooks
BENCH := $(BIN)python -m rwkv_lessons.bench
# `make clean setup LOCK=` takes the newest releases that pyproject.toml allows.
LOCK ?= --constraint requirements.lock

.PHONY: help setup lab test test-zh test-gpu verify record matrix notebooks site format lock clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1 \t/p' Makefile

setup: .venv/ready  ## create .venv and install the releases of requirements.lock

# The server's root is the repository, so that links to docs and other lessons lead somewhere.
lab: .venv/ready  ## copy the lessons to work/ and open them; on a server: make lab ARGS=--no-browser
	$(BIN)lessons start
	PATH="$(CURDIR)/.venv/bin:$$PATH" $(BIN)jupyter lab --ServerApp.root_dir="$(CURDIR)" \
		$(ARGS) work/00_start_here.ipynb

test: .venv/ready  ## lint, unit tests, every notebook as shipped and solved, the Chinese ones
	$(BIN)ruff check . && $(BIN)ruff format --check .
	$(PYTEST) -n 2 --dist worksteal
	$(NBVAL) --solved
	$(NBVAL) --lang zh

test-zh: .venv/ready  ## the lessons that are translated into Chinese, as their copies show them
	$(NBVAL) --lang zh

test-gpu: .venv/ready  ## every test that needs a GPU, and a record of how they went; ARGS=--gpu-record=DIR
	$(PYTEST) tests -m gpu -n auto --dist worksteal --gpu-record $(ARGS)

verify: .venv/ready  ## hold every kernel against float64 on this GPU; ARGS="--only 'wkv6*'"
	$(BIN)python -m rwkv_lessons.verify $(ARGS)

record: .venv/ready  ## measure on this machine's GPU, keep the numbers, redraw the README's; ARGS=--needed
	$(BENCH) record-all $(ARGS); failed=$$?; $(BIN)python -m rwkv_lessons.report && exit $$failed

matrix: .venv/ready  ## compile every kernel for every architecture, keep registers and spills
	$(BENCH) matrix $(ARGS)

notebooks: .venv/ready  ## derive the exercises from solutions/ and run every notebook in place
	$(BIN)lessons sync && $(BIN)lessons run

site: .venv/ready  ## build the website in build/site, from stored outputs, and look at every page
	$(BIN)python -m rwkv_lessons.report.site build/pages
	$(BIN)python -m sphinx --fail-on-warning --keep-going -q -c docs/site build/pages build/site
	$(BIN)python -m rwkv_lessons.report.site build/pages-zh --lang zh
	$(BIN)python -m sphinx --fail-on-warning --keep-going -q -c docs/site -t zh build/pages-zh build/site/zh
	$(PYTEST) tests/report/test_built_site.py --site build/site -q

format: .venv/ready  ## put the code in order
	$(BIN)ruff check --fix . && $(BIN)ruff format .

lock: .venv/ready  ## write down the releases that are in .venv, after a `make test` with them
	$(BIN)python -m rwkv_lessons.lab.commands.lock

clean:  ## remove .venv and caches; your work/ and progress stay
	rm -rf .venv build .pytest_cache .ruff_cache .hypothesis *.egg-info

# Written last, so that an interrupted set-up starts again and pip keeps what it has.
.venv/ready: pyproject.toml warplens/pyproject.toml requirements.lock
	@$(or $(PYTHON),false) -c '$(NEW_ENOUGH)' || { echo "Python 3.11 to 3.14 is needed." \
		"Install it ('sudo apt install python3 python3-venv', 'brew install python@3.12')," \
		"or name yours: make lab PYTHON=/path/to/python3"; exit 1; }
	@echo "Setting up .venv, a few minutes the first time: 2.8 GB on disk," \
		"about 7 GB where torch brings its CUDA libraries."
	@$(BIN)python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv || { \
		rm -rf .venv; echo "$(PYTHON) cannot create an environment." \
		"On Debian and Ubuntu: sudo apt install python3-venv"; exit 1; }
	@$(BIN)python -m pip install $(LOCK) --editable './warplens[numba,triton,pictures]' --editable '.[cuda,lessons,jupyter,dev]'
	@touch $@
