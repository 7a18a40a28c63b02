# The two commands of the README; each does all its own set-up in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# torch and torchvision are built for each other: they are installed together, first.
TORCH ?= torch torchvision

.PHONY: demo test check bench clean

demo: $(VENV)/demo.done
	$(BIN)/python examples/train_photos.py

test: $(VENV)/dev.done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

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
