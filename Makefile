# Every target sets up .venv when it is missing; when it is there they start at once.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

# With ACCELERATOR=cuda12 or tpu, jax for that chip is installed beside the CPU's: make setup ACCELERATOR=cuda12
ACCELERATOR ?=
# Both compilers in an environment of their own: with them installed, jax looks for chips at every start.
COMPILERS := .venv-compilers

.PHONY: setup demo test test-slow test-accelerators bench lint

setup: $(READY)
ifneq ($(ACCELERATOR),)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "jax[$(ACCELERATOR)]==0.9.2"
endif

$(READY): requirements.txt
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'genda-mjx needs Python 3.11 or newer, found ' + sys.version.split()[0])"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing requirements (a minute or two)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $(READY)

demo: $(READY)
	rm -rf runs/demo
	$(BIN)/python train.py --env point --preset small --out runs/demo

# Two workers: compiling is most of the time and uses one core. A file stays on one worker, so that it shares its bodies; files in their
# order, as those with few tests are not the short ones.
test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

$(COMPILERS)/.ready: requirements.txt
	@test -x $(COMPILERS)/bin/python || $(PYTHON) -m venv $(COMPILERS)
	@echo "installing the compilers of TPUs and CUDA (5 GB, some minutes)"
	@$(COMPILERS)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt \
		"jax[tpu]==0.9.2" "jax-cuda12-plugin[with-cuda]==0.9.2"
	@touch $@

# Compiles the program for chips that are not here and checks what must stay true of it; 10 to 20 minutes.
test-accelerators: $(COMPILERS)/.ready
	$(COMPILERS)/bin/python -m pytest tests/accelerators.py

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
	$(BIN)/python -m benchmarks.render

lint: $(READY)
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
