# make demo            install the project and run the demonstration
# make mesh-demo       one posterior, sampled by two processes on this machine
# make check           lint, type check and the tests that compile little, minutes: the inner loop
# make test            lint, type check and the short tests, about ten minutes; of one part: ROOM=smc
# make test-rest       the tests that make test leaves out
# make test-all        lint, type check and all tests
# make declared        write what follows from a new sampler: exports, tables, draws of a fixed seed
# make docs            build the documentation, warnings are errors
# make bench           benchmarks (write docs/results), about nine hours; one: make bench-smc; more: BENCH_ARGS=--long
# make wheel-check     build a wheel and import it in an empty environment
# make sdist-check     quick tests of an unpacked sdist, and of the wheel that is built from it
# make alarms          how often statistical tests fail right samplers: twenty other seeds each
# make calibration     simulation-based calibration of every exact NumPyro kernel
# make lower-bounds    part of the tests with the lowest versions that pyproject.toml allows
# make newest          the same with the newest; NIGHTLY=1: of JAX and NumPyro what is not released

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALLED := $(VENV)/.installed
INSTALLED_DOCS := $(VENV)/.installed-docs

.DEFAULT_GOAL := help
.PHONY: help .venv demo mesh-demo check declared fixed-seeds alarms calibration test test-rest test-all lint types pytest docs bench wheel-check sdist-check lower-bounds newest clean

help:
	@sed -n 's/^# make/make/p' Makefile

# `.venv` is a directory that is always there after the first install, so the stamp file carries
# the dependency on pyproject.toml.
.venv: $(INSTALLED)

$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade pip
	$(PIP) install --quiet -e '.[demo,test,nn,ode,store]'
	@touch $@

$(INSTALLED_DOCS): $(INSTALLED)
	$(PIP) install --quiet -e '.[docs]'
	@touch $@

demo: $(INSTALLED)
	$(BIN)/python -m examples.demo

# Two processes that find each other on a port that is free. If one of them fails, the other ends.
MESH_DEMO = $(BIN)/python examples/mesh.py localhost:$$port 2
FREE_PORT = import socket; s = socket.socket(); s.bind(("localhost", 0)); print(s.getsockname()[1])

mesh-demo: $(INSTALLED)
	@port=$$($(BIN)/python -c '$(FREE_PORT)'); \
	$(MESH_DEMO) 1 & second=$$!; \
	$(MESH_DEMO) 0 && wait $$second

# Two worker processes on two cores: one thread per process for BLAS and for XLA's matrix products.
# Tests compile much and run little: without LLVM's optimizations they take half the time, and
# without XLA's newer emitters of fused loops half of that. A jaxlib that does not know an option
# stops at it, so those that may go one day are tried first.
# Compiled programs are kept between runs, for all clones and work trees of a user; those that take
# less than a tenth of a second take as long to be written. XLA's own caches, of a GPU, would make
# the folder a part of a program's key, and each worker has a folder.
PROGRAMS = $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/numpyro_fwd/jax
FAST_FLAGS = --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1
TEST_ENV = \
	JAX_PLATFORMS=cpu \
	JAX_COMPILATION_CACHE_DIR="$(PROGRAMS)" \
	JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0.1 \
	JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1 \
	JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none \
	XLA_FLAGS="$$flags" \
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 \
	MPLBACKEND=Agg
WORKERS ?= 2
PYTEST_ARGS ?=
SELECTED =

# What `make check` runs: files that compile little. All else is left to `make test`.
QUICK_TESTS = $(addprefix tests/, \
	test_architecture.py \
	benchmarks/test_benchmark_runner.py \
	blackjax_ext/mcmc/test_arguments.py \
	blackjax_ext/mcmc/test_schedules.py \
	blackjax_ext/metrics \
	blackjax_ext/rows \
	laws/test_costs.py \
	laws/test_interop.py \
	laws/test_proposal.py \
	laws/test_smc_mutations.py \
	numpyro_fwd/test_bad_input.py)
# without the examples in docstrings, which run every sampler
QUICK = -m "not slow" -k "not examples_in_docstrings"

check: SELECTED = $(QUICK_TESTS) $(QUICK)
check: lint types pytest

# What is short: tests/selection.py. Of a part of the packages: what bears its name, and the law of
# exactness. A part without tests of its own: PYTEST_ARGS and paths.
test: SELECTED = --short $(if $(ROOM),$(OF_ROOM) tests/test_architecture.py tests/laws/test_invariance.py)
test: OF_ROOM = $(or $(wildcard tests/*/$(ROOM) tests/*/test_$(ROOM).py tests/laws/test_*$(ROOM)*.py),$(error \
	no tests bear the name ROOM=$(ROOM)))
test: lint types pytest

test-rest: SELECTED = --not-short
test-rest: pytest

test-all: lint types pytest

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

# `make test` has three kernels on a model each.
calibration: SELECTED = tests/laws/test_calibration.py --full-laws
calibration: pytest

# How often a right sampler fails a statistical test before it is asked again.
alarms: SELECTED = --alarms=20
alarms: pytest

# The draws of tests/test_fixed_seeds.py, with the flags of the tests: they decide on roundings.
fixed-seeds: RUN = -m tests.fixed_seeds
fixed-seeds: pytest

# What follows from the declaration of a sampler: exports, a row of docs/kernels.md, its draws.
declared: RUN = -m tests.declared
declared: pytest

RUN = -m pytest -n $(WORKERS) --dist worksteal $(SELECTED) $(PYTEST_ARGS)
pytest: $(INSTALLED)
	@mkdir -p "$(PROGRAMS)"; \
	flags="$$XLA_FLAGS --xla_cpu_multi_thread_eigen=false --xla_backend_optimization_level=0"; \
	if XLA_FLAGS="$(FAST_FLAGS)" JAX_PLATFORMS=cpu $(BIN)/python -c 'import jax; jax.devices()' \
		2>/dev/null; then flags="$$flags $(FAST_FLAGS)"; fi; \
	$(TEST_ENV) $(BIN)/python $(RUN)

docs: $(INSTALLED_DOCS)
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build

# Minutes on two cores: acceptance-targets 3, forward-mode 4, second-order 10, amagold 9,
# below-one-pass 10, regressions 10, smc 3, funnel 13, hierarchies 13 (its first section), waiting 10, banana-and-funnel 1,
# convolutions 3, scale 6, peers 8: 94 from end to end without scaling.
# BENCH_ARGS=--long adds the sections that are left out of that: lynx_hare of forward-mode 8;
# rows_1e6 and network of amagold 45; sizes of below-one-pass 15; networks, wine and california of smc 80;
# wine and california of full-networks 30; image-networks 30; quality of multinomial 10; posterior and
# tempered of network-regression 30; accuracy of convolutions 40; cold and
# evidence of peers 15; learned_peers of hierarchies 40, more rows with nutpie; each posterior of leaderboard 2 to 5. posteriordb makes its tables of
# what `--measure looked_at held_out` has kept, hours. The pages say how long each took.
# What is interrupted goes on where it stopped when it is run again; BENCH_ARGS=--fresh forgets it.
# bench-gpu needs an accelerator, and is not among them.
BENCH_ARGS ?=
BENCHMARKS = acceptance-targets priors forward-mode second-order amagold below-one-pass regressions smc full-networks image-networks funnel hierarchies waiting banana-and-funnel multinomial network-regression convolutions scale peers scaling leaderboard posteriordb
bench: $(BENCHMARKS:%=bench-%)

bench-%: $(INSTALLED)
	$(BIN)/python -m benchmarks.$(subst -,_,$*) $(BENCH_ARGS)

# Builds and imports outside the checkout, so that nothing but the wheel can be imported.
wheel-check: $(INSTALLED)
	@set -eu; work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; \
	$(PIP) wheel --quiet --no-deps --wheel-dir "$$work" .; \
	$(BIN)/python -m venv "$$work/venv"; \
	"$$work/venv/bin/python" -m pip --disable-pip-version-check install --quiet "$$work"/numpyro_fwd-*.whl; \
	cd "$$work"; \
	venv/bin/python -c 'from importlib.resources import files; \
	import blackjax_ext, numpyro_fwd; \
	assert files(blackjax_ext).joinpath("py.typed").is_file(); \
	assert files(numpyro_fwd).joinpath("py.typed").is_file(); \
	print("imported", blackjax_ext.__name__, numpyro_fwd.__name__, "from", numpyro_fwd.__file__)'

# The quick tests in what a release consists of: in the unpacked sdist, whose `make check` makes an
# environment from nothing, and then with the wheel that is built from it, its sources gone. What
# reads the sources or benchmarks is left out there.
sdist-check:
	@set -eu; work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; \
	$(PYTHON) -m venv "$$work/venv"; pip="$$work/venv/bin/python -m pip --disable-pip-version-check"; \
	$$pip install --quiet hatchling; \
	"$$work/venv/bin/python" -m hatchling build -t sdist -d "$$work"; \
	tar -xzf "$$work"/numpyro_fwd-*.tar.gz -C "$$work"; cd "$$work"/numpyro_fwd-*/; \
	env -u MAKEFLAGS $(MAKE) check PYTEST_ARGS="$(PYTEST_ARGS)"; \
	$$pip wheel --quiet --no-deps --wheel-dir "$$work" .; \
	$$pip install --quiet "$$(echo "$$work"/numpyro_fwd-*.whl)[test]"; \
	rm -rf blackjax_ext numpyro_fwd .venv; \
	"$$work/venv/bin/python" -m pytest -q -n $(WORKERS) $(QUICK) \
		$(filter-out tests/test_architecture.py tests/benchmarks/%,$(QUICK_TESTS))

# The same tests at both ends of what pyproject.toml allows, in an environment of their own. With
# another Python: make newest PYTHON=python3.13; with what is not released: NIGHTLY=1.
LOWEST = import re, tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	all = p["dependencies"] + p["optional-dependencies"]["test"] + p["optional-dependencies"]["store"]; \
	print(*(re.sub(">=([^,;]*)[^;]*", r"==\1", d) for d in all if ">=" in d), sep="\n")
NIGHTLY_JAX = --pre --extra-index-url https://us-python.pkg.dev/ml-oss-artifacts-published/jax/simple/
NIGHTLY_NUMPYRO = numpyro@git+https://github.com/pyro-ppl/numpyro
ENDS = tests/test_architecture.py tests/test_side_effects.py tests/blackjax_ext/mcmc/test_arguments.py \
	tests/laws/test_reductions.py tests/blackjax_ext/mcmc/test_partial_updates.py \
	tests/numpyro_fwd/storage/test_store.py

newest: LIMITS = true
newest: UPGRADE = --upgrade --upgrade-strategy eager $(if $(NIGHTLY),$(NIGHTLY_JAX) $(NIGHTLY_NUMPYRO))
lower-bounds: LIMITS = $(PYTHON) -c '$(LOWEST)'
newest lower-bounds:
	@set -eu; work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; \
	$(LIMITS) > "$$work/constraints.txt"; \
	$(PYTHON) -m venv "$$work/venv"; \
	"$$work/venv/bin/python" -m pip --disable-pip-version-check install --quiet $(UPGRADE) \
		--constraint "$$work/constraints.txt" --editable '.[test]'; \
	"$$work/venv/bin/python" -m pip list | grep -iE '^(jax|jaxlib|numpyro|blackjax|numpy|arviz|zarr|xarray)'; \
	"$$work/venv/bin/python" -m pytest -q $(ENDS) $(PYTEST_ARGS)

clean:
	rm -rf .cache "$(PROGRAMS)" .hypothesis .mypy_cache .pytest_cache .ruff_cache dist build docs/_build docs/api/names docs/thumbnails demo
