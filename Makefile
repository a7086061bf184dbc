# Every target sets up .venv when it is missing; when it is there they start at once.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

# With ACCELERATOR=cuda12 or tpu, jax for that chip is installed beside the CPU's: make setup ACCELERATOR=cuda12
ACCELERATOR ?=
# Both compilers in an environment of their own: with them installed, jax looks for chips at every start.
COMPILERS := .venv-compilers

.PHONY: setup demo test test-slow test-accelerators test-page explorer-assets bench lint

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
	$(BIN)/python eval.py --ckpt runs/demo --explore

# Two workers: compiling is most of the time and uses one core. A file stays on one worker, so that it shares its bodies; files in their
# order, as those with few tests are not the short ones. Programs run for seconds here, so LLVM need not make them fast: that
# takes almost half of the time. The programs are the same; `make test-slow` compiles them as users do.
test: $(READY)
	XLA_FLAGS="$(XLA_FLAGS) --xla_backend_optimization_level=0" $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

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

# What the explorer pages carry, built anew with node and npm; the results are committed.
explorer-assets:
	cd explorer && npm ci --no-fund --no-audit && npm run build

# The explorer page in real browsers. Playwright goes into a folder of its own; browsers are the system's.
BROWSER_TESTS := .cache/playwright
test-page: $(READY)
	@test -d $(BROWSER_TESTS) || $(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--target $(BROWSER_TESTS) playwright==1.65.0 || echo "playwright cannot be installed: its tests are skipped"
	@command -v chromium >/dev/null && command -v firefox-esr >/dev/null || \
		{ apt-get install --yes --quiet chromium firefox-esr >/dev/null 2>&1 || echo "browsers cannot be installed"; }
	PYTHONPATH=$(BROWSER_TESTS) $(BIN)/python -m pytest tests/page.py -rs -s

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
	$(BIN)/python -m benchmarks.kitchen steps episodes scripts speed

lint: $(READY)
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
