# Every target sets up .venv when it is missing; when it is there they start at once.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup demo test test-slow bench lint

setup: $(READY)

$(READY): requirements.txt
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'genda-mjx needs Python 3.11 or newer, found ' + sys.version.split()[0])"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing requirements (a minute or two)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $(READY)

demo: $(READY)
	rm -rf runs/demo
	$(BIN)/python train.py --env point --preset small --out runs/demo

# Two workers: compiling is most of the time and uses one core. A file stays on one worker, so that it shares its bodies.
test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

bench: $(READY)
	$(BIN)/python -m benchmarks.physics
	$(BIN)/python -m benchmarks.fidelity
	$(BIN)/python -m benchmarks.learner
	$(BIN)/python -m benchmarks.scaling
	$(BIN)/python -m benchmarks.peers
	$(BIN)/python -m benchmarks.operations
	$(BIN)/python -m benchmarks.seeds
	$(BIN)/python -m benchmarks.mazes
	$(BIN)/python -m benchmarks.roofline

lint: $(READY)
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
