# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

# Every target that needs the environment makes it first, from requirements.lock; PYTHON=... names the interpreter to use.
CONFIG ?= trace
RECORDING ?= data/traces/attn_0.npz
WORKERS ?= 2
ENGINES ?= hf lmcache vllm sglang
ROUNDS ?= 5
BOARD ?= ulx3s_85f
ARGS ?=

STAMP := .venv/kelp-stamp
KELP := .venv/bin/kelp
PYTEST := .venv/bin/python -m pytest

# Benches and commands are processes by the hundred that import the same modules: they are compiled once.
unexport PYTHONDONTWRITEBYTECODE
# Benches judge by assert.
unexport PYTHONOPTIMIZE

.DEFAULT_GOAL := help
.PHONY: help setup demo test slow lint-configs soak bench prove coverage mutate nightly lockstep-full test-engines fpga fpga-blocks fpga-netlist fpga-sim lint verilog doctor site lock clean distclean

help: ## this list
	@echo "KELP: make TARGET"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv from requirements.lock (the others do this by themselves)

$(STAMP): requirements.lock pyproject.toml scripts/setup
	@sh scripts/setup

demo: $(STAMP) ## replay a recorded attention trace through the RTL, compare bit for bit, write build/demo/
	$(KELP) demo $(ARGS)

test: $(STAMP) ## every test but the slow ones and the long proofs (ARGS="-k codec" selects)
	$(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

slow: $(STAMP) ## the tests that `make test` leaves out, but for proofs and lint
	$(PYTEST) -n $(WORKERS) --dist worksteal -m "slow or night" -k "not lint" $(ARGS)

lint-configs: $(STAMP) ## the Verilog of every named configuration under Verilator's -Wall
	$(PYTEST) -n $(WORKERS) --dist worksteal -m slow -k lint $(ARGS)

soak: $(STAMP) ## every bench with ROUNDS=5 fresh seeds instead of its fixed one, and the slow tests
	@for round in $$(seq $(ROUNDS)); do KELP_SEED=fresh $(PYTEST) -n $(WORKERS) --dist worksteal -m "not prove" $(ARGS) || exit 1; done

bench: $(STAMP) ## measure every figure of the specification into build/bench.json; exit 1 where one misses its bar
	$(KELP) bench $(ARGS)

prove: $(STAMP) ## all formal proofs (queues, arbiters, free lists, miss table, arithmetic), and a table of them
	$(PYTEST) -n $(WORKERS) --dist worksteal -m prove $(ARGS)

mutate: $(STAMP) ## would each block's bench notice a wrong block? into build/mutate.json (ARGS="--only host --count 20 --seed 2 --resume"; hours)
	.venv/bin/python -m kelp_verif.mutation.hunt $(ARGS)

coverage: $(STAMP) ## cover points, lines and control signals that the benches reach, into build/coverage.json (ARGS="--only host")
	.venv/bin/python -m kelp_verif.coverage.collect $(ARGS)

nightly: $(STAMP) ## `make test` and everything that it leaves out, part by part, into build/nightly.json (ARGS="prove bench" selects)
	$(KELP) nightly $(ARGS)

lockstep-full: $(STAMP) ## RTL against golden model, decision by decision, over a whole recording (long)
	$(KELP) replay $(RECORDING) --engine rtl --lockstep $(ARGS)

test-engines: $(STAMP) ## the inference engines' own classes on top of cxl_kv, each in an environment of its own (ENGINES="hf" selects)
	for engine in $(ENGINES); do sh scripts/engines $$engine $(ARGS) || exit 1; done

fpga-sim: $(STAMP) ## the board's top on its SDRAM chip in Verilator: self-test and replay over the UART, into build/fpga/sim.json (long)
	$(KELP) fpga proof $(ARGS)

fpga-netlist: $(STAMP) ## the self-test again, on the top as ECP5 cells: what synthesis made of it, into build/fpga/netlist.json (long)
	$(KELP) fpga netlist $(ARGS)

fpga: $(STAMP) ## synthesise, place, route and pack a board's top (BOARD=ulx3s_85f) into build/fpga/BOARD (very long; goes on where it was broken off)
	$(KELP) fpga build --board $(BOARD) $(ARGS)

fpga-blocks: $(STAMP) ## place and route each block of the endpoint alone (very long; ARGS="--only tracker" selects)
	$(KELP) fpga blocks $(ARGS)

lint: $(STAMP) ## ruff over all Python: rules and format
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

verilog: $(STAMP) ## generate the endpoint's Verilog into build/rtl/CONFIG (CONFIG=trace by default)
	$(KELP) verilog --config $(CONFIG) -o build/rtl/$(CONFIG) $(ARGS)

doctor: $(STAMP) ## what is installed, what is missing, what to type
	$(KELP) doctor

site: $(STAMP) ## this documentation and the API as pages to read offline: build/site/index.html
	.venv/bin/python -m sphinx -q -W --keep-going -c docs -d build/site-doctrees . build/site $(ARGS)
	@echo "build/site/index.html"

lock: ## resolve pyproject.toml afresh into requirements.lock
	sh scripts/lock $(ARGS)

clean: ## remove everything generated, except .venv
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean ## remove .venv too
	rm -rf .venv
