# rocketbox: `make demo` and `make test` need Python 3.11+ and make, nothing else; they set up .venv themselves.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
SEEDS ?= 200

# Tests run side by side, in a process for each core, up to four. The longest come first, or one process would end with
# them alone. A test that takes more than LIMIT seconds hangs: its process prints where and ends, and the run fails, as
# it does when a process crashes. (Started again, processes hang: pytest-xdist 3.8 gives them one test, and they wait
# for two.) With ROCKETBOX_TESTS=all, which runs all of what is sampled otherwise, a test takes as long as it takes.
WORKERS ?= auto
LIMIT ?= $(if $(filter all,$(ROCKETBOX_TESTS)),0,600)
PYTEST := $(VENV)/bin/python -m pytest -n $(WORKERS) --maxprocesses=4 --dist=loadgroup --no-loadscope-reorder \
	--max-worker-restart=0 -o faulthandler_timeout=$(LIMIT) -o faulthandler_exit_on_timeout=true

# Java 17+ on this machine? Then Spark uses it; otherwise the extra spark-jre brings one into the environment.
JAVA := $(if $(JAVA_HOME),$(JAVA_HOME)/bin/java,java)
JAVA_MAJOR := $(shell "$(JAVA)" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1)
HAS_JAVA := $(shell [ "$(JAVA_MAJOR)" -ge 17 ] 2>/dev/null && echo yes)
comma := ,
EXTRAS := spark,dev$(if $(HAS_JAVA),,$(comma)spark-jre)

# The stamp is named by what decides the content of the environment.
STAMP := $(VENV)/.stamp-$(shell cat pyproject.toml | cksum | tr -dc '0-9')-$(if $(HAS_JAVA),java,jre)

.PHONY: demo test check bench conformance chaos mutants simulate soak env clean help

help: ## show these targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST)

env: $(STAMP) ## make the environment in .venv

$(STAMP): pyproject.toml
	@"$(PYTHON)" -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else \
		f"rocketbox needs Python 3.11 or newer, and $(PYTHON) is {v[0]}.{v[1]}; run: make PYTHON=python3.11 ...")'
	@"$(PYTHON)" -c 'import venv, ensurepip' || { echo "$(PYTHON) has no venv module; on Debian: apt install python3-venv"; exit 1; }
	@echo "setting up $(VENV) (once; PySpark is large)"
	@rm -f $(VENV)/.stamp-*
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --editable '.[$(EXTRAS)]'
	@touch $@

demo: $(STAMP) ## run the flight desk on the embedded broker (ARGS="--help")
	@$(BIN)/python -m starter_examples.flight_desk $(ARGS)

test: $(STAMP) ## run the tests, on all cores up to four (ARGS="-k name"; WORKERS=0: one after another)
	@$(PYTEST) tests/simulation tests/examples tests/docs tests/unit tests/integration $(ARGS)

check: $(STAMP) ## ruff and mypy --strict
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: $(STAMP) ## print the benchmarks (ARGS="--help")
	@$(BIN)/python -m tests.benchmarks $(ARGS)

conformance: $(STAMP) ## the same suite on Apache RocketMQ 5.5.0 and 4.9.7 (needs Java 17+ and Maven; ARGS=--all: every test, 5.3.3 too)
	@$(BIN)/python -m tests.conformance $(ARGS)

chaos: $(STAMP) ## kill the broker 100 times with clients at work (ARGS="--java" in turns with Apache's; ARGS=spark: what a Spark listener lives through)
	@$(BIN)/python -m tests.chaos $(ARGS)

mutants: $(STAMP) ## break one promise after the other and show which test notices (ARGS="fsync"; ARGS="--package protocol": 100 changes of single operators)
	@$(if $(filter --package% --one%,$(ARGS)),$(BIN)/python -c 'import cosmic_ray; import coverage' 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --editable '.[mutants]')
	@$(BIN)/python -m tests.mutants $(ARGS)

simulate: $(STAMP) ## run clients and servers on virtual time, as seeds decide (SEEDS=100000)
	@$(BIN)/python -m tests.simulation $(SEEDS) $(ARGS)

soak: $(STAMP) ## run the harness's own tests 1,000 times, each time in another order (ARGS="--load 2 --stops"; it goes on where it was stopped; ARGS=kinds: 100,000 messages of each kind)
	@$(BIN)/python -m tests.soak $(ARGS)

clean: ## remove the environment and what runs have left
	rm -rf $(VENV) .rocketbox .pytest_cache .mypy_cache .ruff_cache spark-warehouse
