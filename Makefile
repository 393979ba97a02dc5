# Everything is installed into .venv. PYTHON creates it, and may be any Python from 3.10 on.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.up-to-date
ENERGON_VENV  := .venv-energon
ENERGON_STAMP := $(ENERGON_VENV)/.up-to-date
PEERS_VENV  := .venv-peers
PEERS_STAMP := $(PEERS_VENV)/.up-to-date
DATASETS_VENV  := .venv-datasets
DATASETS_STAMP := $(DATASETS_VENV)/.up-to-date
DOCS_VENV  := .venv-docs
DOCS_STAMP := $(DOCS_VENV)/.up-to-date
DIST_VENV  := .venv-dist
NOTEBOOKS_VENV  := .venv-notebooks
NOTEBOOKS_STAMP := $(NOTEBOOKS_VENV)/.up-to-date

# From 2.11 on, torch on PyPI is built for CUDA 13, which needs driver 580.
# TORCH is passed to pip, such as 'torch==2.13.0', with --index-url for another index. DALI names the extra to install.
DRIVER := $(shell nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | sed -n '1s/[^0-9].*//p')
DRIVER_KIND := $(if $(DRIVER),$(shell test $(DRIVER) -ge 580 && echo cuda13 || echo cuda12))
TORCH ?= $(if $(filter cuda12,$(DRIVER_KIND)),torch==2.10.0,torch==2.13.0)
DALI ?= $(or $(DRIVER_KIND),cuda12)
# A choice that differs from the one of the existing environment triggers a new installation.
CHOICE := $(TORCH) $(DALI)
CHOICE_MADE := $(shell cat $(VENV)/.choice 2>/dev/null)

# One more than the cores of a small machine: a third of the tests' time is waiting.
JOBS ?= 3
PYTHONS ?= python3.10 python3.11 python3.12 python3.13
DATA ?=
TABLES ?=
QUICK ?=
OUT ?= results-gpu
STAGES ?=
DEVICE ?= gpu

.PHONY: help setup test test-browser test-faults test-front-ends check docs dist dist-pythons release-check notebooks run-notebooks demo demo-train bench-all gpu clean

help:
	@echo "make setup [TORCH='torch==2.10.0'] [DALI=cuda12]   creates the environment in $(VENV); the defaults follow the GPU's driver"
	@echo "make demo [DATA=/path]  decodes real photographs (or your own dataset) with every decoder of this machine"
	@echo "make demo-train         trains two models for minutes: one predicts pixels, one captions the demo's images"
	@echo "make test               runs the tests"
	@echo "make test-browser       tests the page of \`energon-dali view\` in headless Chromium, and the metrics with a real Prometheus"
	@echo "make test-faults [PART=1/4]  the full sweeps, or a fixed part of them: Ray, kills, thousands of damaged files, failing disks and servers"
	@echo "make test-front-ends    compares all model front ends with transformers' processors on tens of thousands of images"
	@echo "make check              checks style, layout and types, and that the package did not get worse by tools/house.json"
	@echo "make docs               builds the documentation in site/; warnings are errors"
	@echo "make notebooks          writes the tutorials as notebooks into notebooks/"
	@echo "make run-notebooks      does so, and runs them, so that they contain what they print"
	@echo "make dist               builds sdist and wheel in dist/, and tests both in an empty environment"
	@echo "make dist-pythons [PYTHONS='python3.10 python3.13']  tests the wheel in an empty environment of each Python"
	@echo "make release-check      compares versions, and refuses images of the documentation that are older than what they show"
	@echo "make bench-all [TABLES='peers cpu']   runs the benchmarks of the documentation, each next to other loaders; hours"
	@echo "make bench-TABLE        runs one: peers, cpu, small, video, first-batch, vision, decode-scale, packing, blend, trainer, remote, remote-latency, remote-blend, streams, scale"
	@echo "make gpu [OUT=folder] [STAGES='doctor tests'] [DEVICE=cpu]   runs checks, tests and benchmarks on a GPU host, and writes OUT/report.html"

setup: $(STAMP)

.PHONY: other-choice
$(STAMP): pyproject.toml setup.py constraints-ci.txt $(if $(CHOICE_MADE),$(if $(filter-out $(CHOICE_MADE),$(CHOICE)),other-choice))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "$(PYTHON) is older than Python 3.10; name a newer one: make setup PYTHON=python3.12"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# An incomplete environment is removed, unless it was complete before: it would be taken for a complete one.
	{ $(BIN)/python -m pip install --quiet --upgrade pip && \
		$(BIN)/python -m pip install --quiet --constraint constraints-ci.txt $(TORCH) && \
		$(BIN)/python -m pip install --quiet --constraint constraints-ci.txt --editable '.[$(DALI),dev]'; } || \
		{ test -e $@ || rm -rf $(VENV); echo "The environment was not made; see above. To choose: make setup TORCH=... DALI=..."; exit 1; }
	@echo '$(CHOICE)' >$(VENV)/.choice
	@touch $@

# megatron-energon gets its own environment, as its users have.
$(ENERGON_STAMP): constraints-ci.txt benchmarks/requirements-energon.txt
	test -x $(ENERGON_VENV)/bin/python || $(PYTHON) -m venv $(ENERGON_VENV)
	$(ENERGON_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(ENERGON_VENV)/bin/python -m pip install --quiet --constraint constraints-ci.txt \
		--requirement benchmarks/requirements-energon.txt
	@touch $@

# Other loaders.
$(PEERS_STAMP): constraints-ci.txt benchmarks/remote/requirements-peers.txt
	test -x $(PEERS_VENV)/bin/python || $(PYTHON) -m venv $(PEERS_VENV)
	$(PEERS_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(PEERS_VENV)/bin/python -m pip install --quiet --requirement benchmarks/remote/requirements-peers.txt
	@touch $@

# Hugging Face datasets, for a test: its pyarrow would change what LitData writes.
$(DATASETS_STAMP):
	test -x $(DATASETS_VENV)/bin/python || $(PYTHON) -m venv $(DATASETS_VENV)
	$(DATASETS_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(DATASETS_VENV)/bin/python -m pip install --quiet torch==2.13.0 datasets==4.4.2 pillow
	@touch $@

# The tests start hundreds of processes. Where bytecode is not written (PYTHONDONTWRITEBYTECODE), each would compile all
# modules that it imports. pytest keeps bytecode of its own for modules with assertions, whose rewriting takes each of its
# processes ten seconds. One thread for torch in each: there are as many processes as cores, and its threads would wait for
# each other.
test: $(STAMP)
	$(BIN)/python -m compileall -q -j 0 energon_dali kernels tests benchmarks examples
	env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

# Chromium and its driver are packages of the system. They are installed where root may do that.
test-browser: $(STAMP)
	{ command -v chromium || command -v google-chrome; } >/dev/null && { command -v chromedriver || test -n "$$CHROMEWEBDRIVER"; } >/dev/null || \
		{ test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get install -y -q chromium chromium-driver >/dev/null; } || \
		{ echo "Chromium is missing. Install Debian's packages: apt install chromium chromium-driver"; exit 1; }
	$(BIN)/python -m pytest -n 0 -m browser tests/view
	command -v prometheus >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get install -y -q prometheus >/dev/null; } || \
		echo "Prometheus is missing, and its tests are skipped. Install Debian's package: apt install prometheus"
	$(BIN)/python -m pytest -n 0 -m prometheus tests/integrations

# Thousands of mutated files, failing disks and servers, kills and full disks: about a quarter of an hour on two cores.
# PART=2/4 runs the second of four parts, which are always the same.
PART ?= 1/1
test-faults: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "sweep or long_property" --hypothesis-profile whole --part $(PART)
	$(BIN)/python -m tests.faults --jobs $(JOBS) --part $(PART)
	$(BIN)/python -m tests.integrations --part $(PART)

# transformers' video processors need torchvision. It gets a folder of its own, because with a torch built for the CPU its
# wheel, and with it transformers, can only be imported after its operators were declared.
$(VENV)/torchvision: $(STAMP) constraints-ci.txt
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $@ --constraint constraints-ci.txt torchvision
	@touch $@

# At least 300 images and 30 configurations per model family, published and drawn ones: less than half an hour on two cores.
# Then every recipe of examples/vlm, killed and resumed.
test-front-ends: $(STAMP) $(VENV)/torchvision
	$(BIN)/python -m tests.decode.front_ends --jobs $(JOBS)
	$(BIN)/python -m tests.decode.audio_front_ends --jobs $(JOBS)
	$(BIN)/python -m tests.decode.audio_front_ends.family_sweep
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m sweep tests/examples tests/loader/test_front_end_pipeline.py tests/task_encoder tests/decode/front_ends/test_omni_positions.py

check: $(STAMP)
	$(BIN)/ruff check energon_dali kernels tests benchmarks examples tools docs/tutorials setup.py train.py
	$(BIN)/ruff format --check --quiet energon_dali kernels tests benchmarks examples tools docs/tutorials setup.py train.py
	$(BIN)/mypy
	$(BIN)/python tools/house.py --check
	$(BIN)/python tools/check_figures.py

# The pages are built from the sources without importing them, so torch is not needed.
$(DOCS_STAMP): constraints-ci.txt
	test -x $(DOCS_VENV)/bin/python || $(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(DOCS_VENV)/bin/python -m pip install --quiet --constraint constraints-ci.txt \
		mkdocs mkdocs-material 'mkdocstrings[python]' ruff
	@touch $@

docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/python -m mkdocs build --strict --quiet

# The programs in docs/tutorials are the only source: notebooks are never edited, nor kept in the repository.
notebooks:
	$(PYTHON) tools/tutorials.py notebooks

# Jupyter gets an environment of its own, whose kernel finds torch and energon_dali in the one of the tests.
$(NOTEBOOKS_STAMP): $(STAMP)
	test -x $(NOTEBOOKS_VENV)/bin/python || $(BIN)/python -m venv $(NOTEBOOKS_VENV)
	$(NOTEBOOKS_VENV)/bin/python -m pip install --quiet nbclient ipykernel
	@touch $@

run-notebooks: notebooks $(NOTEBOOKS_STAMP)
	cd notebooks && PATH="$(CURDIR)/$(BIN):$$PATH" \
		PYTHONPATH="$(CURDIR):$$("$(CURDIR)/$(BIN)/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
		"$(CURDIR)/$(NOTEBOOKS_VENV)/bin/jupyter" execute --inplace *.ipynb

# The smoke test runs three times: after a plain installation of the wheel, with PIL and PyAV; with what the source
# distribution builds; and with DALI. twine renders the README as a package index does.
dist: $(STAMP)
	rm -rf dist build $(DIST_VENV)
	$(BIN)/python -m build --outdir dist .
	$(PYTHON) -m venv $(DIST_VENV)
	$(DIST_VENV)/bin/python -m pip install --quiet --constraint constraints-ci.txt $(TORCH)
	$(DIST_VENV)/bin/python -m pip install --quiet --constraint constraints-ci.txt dist/*.whl
	$(DIST_VENV)/bin/python tools/smoke_test.py
	$(DIST_VENV)/bin/python -m pip install --quiet --no-deps --force-reinstall dist/*.tar.gz
	$(DIST_VENV)/bin/python tools/smoke_test.py
	$(DIST_VENV)/bin/python -m pip install --quiet --constraint constraints-ci.txt "$$(ls dist/*.whl)[$(DALI)]"
	$(DIST_VENV)/bin/python tools/smoke_test.py
	$(DIST_VENV)/bin/python -m pip install --quiet twine
	$(DIST_VENV)/bin/python -m twine check --strict dist/*

# Tests the wheel of `make dist` in an empty environment of each Python that this machine has.
dist-pythons:
	@ls dist/*.whl >/dev/null || { echo "There is no wheel in dist/: make dist"; exit 1; }
	@set -e; for python in $(PYTHONS); do \
		"$$python" -c 'import ensurepip' 2>/dev/null || { echo "$$python: not on this machine, not tested"; continue; }; \
		"$$python" -m venv --clear $(DIST_VENV); \
		$(DIST_VENV)/bin/python -m pip install --quiet $(TORCH); \
		$(DIST_VENV)/bin/python -m pip install --quiet dist/*.whl; \
		$(DIST_VENV)/bin/python -m pip check; \
		$(DIST_VENV)/bin/python tools/smoke_test.py; \
		echo "$$python: installed and tested"; \
	done

release-check: $(STAMP)
	$(BIN)/python tools/release_check.py

demo: $(STAMP)
	$(BIN)/python -m benchmarks.demo $(if $(DATA),--data '$(DATA)')

# The archive has the format of CIFAR-10 and is made from photographs. The images that the model drew are in demo/.
demo-train: demo
	$(BIN)/python -m benchmarks.data.cifar_archive --out demo/cifar
	$(BIN)/python -m energon_dali.tasks.train +task=vision/igpt +dataset=vision/igpt/cifar \
		dataset.cfg.data_dir=demo/cifar backbone.embed_dim=64 backbone.num_heads=4 backbone.num_layers=4 \
		optimizer.lr=3e-3 trainer.max_epochs=16 trainer.check_val_every_n_epoch=4 hydra.run.dir=demo/igpt
	$(BIN)/python -m energon_dali.tasks.train +task=multimodal/captioning +dataset=multimodal/captioning/demo \
		optimizer.lr=4e-3 trainer.max_epochs=4 hydra.run.dir=demo/captioning

# Tables that are current are not run again: an interrupted run continues with the next. An environment that
# ENERGON_PYTHON or PEERS_PYTHON names is not made. torchcodec and SPDL load the system's FFmpeg libraries; without them,
# these candidates are left out. QUICK=--quick tests that the benchmarks run.
bench-all: $(STAMP) $(if $(ENERGON_PYTHON),,$(ENERGON_STAMP)) $(if $(PEERS_PYTHON),,$(PEERS_STAMP))
	command -v ffmpeg >/dev/null || { test "$$(id -u)" = 0 && apt-get install -y -q ffmpeg >/dev/null; } || \
		echo "No FFmpeg on this system: install Debian's package ffmpeg to compare with torchcodec and SPDL's decoder."
	$(BIN)/python -m benchmarks.bench_all $(QUICK) $(TABLES)

# bench-peers, bench-video, ...: one table.
bench-%:
	$(MAKE) bench-all TABLES=$*

# On a host whose own Python has torch and DALI, no setup is needed: PYTHON=python3 benchmarks/gpu.sh FOLDER.
gpu:
	benchmarks/gpu.sh $(OUT) --device $(DEVICE) $(QUICK) $(if $(STAGES),--stage $(STAGES))

clean:
	rm -rf $(VENV) $(ENERGON_VENV) $(PEERS_VENV) $(DATASETS_VENV) $(DOCS_VENV) $(DIST_VENV) $(NOTEBOOKS_VENV) notebooks site build dist ./*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis demo results-gpu
