# The two commands of the README; each does all its own set-up in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# torch and torchvision are built for each other: they are installed together, first.
TORCH ?= torch torchvision

# A fork takes as long as its process has memory: tests that fork most run apart from the others,
# which import most (datasets, trainers, servers) and would double that.
FORKING := tests/collating tests/device tests/loader tests/whole_path tests/workers

.PHONY: demo test check bench clean

demo: $(VENV)/demo.done
	$(BIN)/python examples/train_photos.py

test: $(VENV)/dev.done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	code=0; \
	$(BIN)/python -m pytest $(FORKING) || code=1; \
	$(BIN)/python -m pytest $(FORKING:%=--ignore=%) || code=1; \
	exit $$code

check: $(VENV)/dev.done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/dev.done
	for name in jpeg-cpu transport work shard-read startup build steady; do $(BIN)/fastfeed-bench run $$name || exit 1; done

$(VENV)/torch.done:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(TORCH)
	touch $@

$(VENV)/demo.done: $(VENV)/torch.done pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/dev.done: $(VENV)/torch.done pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
