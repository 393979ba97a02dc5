# Everything is installed into .venv. PYTHON creates it, and may be any Python from 3.10 on.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.up-to-date
ENERGON_VENV  := .venv-energon
ENERGON_STAMP := $(ENERGON_VENV)/.up-to-date
PEERS_VENV  := .venv-peers
PEERS_STAMP := $(PEERS_VENV)/.up-to-date
DOCS_VENV  := .venv-docs
DOCS_STAMP := $(DOCS_VENV)/.up-to-date
DIST_VENV  := .venv-dist

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
DATA ?=
BENCH_JSON ?= benchmarks/results/cpu.json
BENCH_REPETITIONS ?=
BENCH_CACHE ?=
BENCH_PLOT ?= docs/images/cpu.png
VIDEO_JSON ?= benchmarks/results/video.json
VIDEO_PLOT ?= docs/images/video.png
TRAINER_JSON ?= benchmarks/results/trainer.json
TRAINER_PLOT ?= docs/images/trainer.png
PACKING_JSON ?= benchmarks/results/packing.json
PACKING_PLOT ?= docs/images/packing.png
REMOTE_JSON ?= $(if $(QUICK),.cache/quick-remote.json,benchmarks/results/remote.json)
REMOTE_PLOT ?= $(if $(QUICK),.cache/quick-remote.png,docs/images/remote.png)
PEERS_JSON ?= $(if $(QUICK),.cache/quick-peers.json,benchmarks/results/peers.json)
PEERS_PLOT ?= $(if $(QUICK),.cache/quick-peers.png,docs/images/peers.png)
STREAMS_JSON ?= $(if $(QUICK),.cache/quick-streams.json,benchmarks/results/streams.json)
STREAMS_PLOT ?= $(if $(QUICK),.cache/quick-streams.png,docs/images/streams.png)
FIRST_JSON ?= benchmarks/results/first-batch.json
FIRST_PLOT ?= docs/images/first-batch.png
VISION_JSON ?= benchmarks/results/vision.json
VISION_PLOT ?= docs/images/vision.png
SMALL_JSON ?= $(if $(QUICK),.cache/quick-small.json,benchmarks/results/small.json)
SMALL_PLOT ?= $(if $(QUICK),.cache/quick-small.png,docs/images/small.png)
SCALE_JSON ?= $(if $(QUICK),.cache/quick-scale.json,benchmarks/results/scale.json)
SCALE_PLOT ?= $(if $(QUICK),.cache/quick-scale.png,docs/images/scale.png)
OUT ?= results-gpu
STAGES ?=
DEVICE ?= gpu

.PHONY: help setup test test-browser test-faults test-front-ends check docs dist demo demo-train bench bench-first-batch bench-video bench-trainer bench-packing bench-peers bench-remote bench-scale bench-small bench-streams bench-vision gpu clean

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
	@echo "make dist               builds sdist and wheel in dist/, and tests the wheel in an empty environment"
	@echo "make bench              benchmarks on the CPU, compared with bare DALI, PIL, webdataset and megatron-energon"
	@echo "make bench-video        benchmarks on videos, compared with megatron-energon, torchcodec and PyAV"
	@echo "make bench-trainer      measures loading next to a trainer that is busy in Python, with and without a decode process"
	@echo "make bench-packing      measures packing of texts, with and without saved states, compared with megatron-energon"
	@echo "make bench-first-batch  measures how long a trainer waits for its first batch, compared with megatron-energon"
	@echo "make bench-vision       measures input for vision-language models, compared with transformers' processors"
	@echo "make bench-peers        compares with LitData, MosaicML Streaming, Grain, SPDL, torchvision, webdataset and megatron-energon"
	@echo "make bench-remote       measures loaders that read from an S3 server on loopback, with the latency of a real one"
	@echo "make bench-scale        measures indices of up to 100 million samples, and a blend of 1,000 datasets (18 GB of disk)"
	@echo "make bench-streams      measures what 1 to 32 streams cost over up to 100 million samples and 100,000 shards (12 GB of disk)"
	@echo "make bench-small        measures small samples (JSON, text, 32 x 32 PNGs, a blend of 1,000), compared with five other loaders"
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
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m sweep tests/examples tests/loader/test_front_end_pipeline.py

check: $(STAMP)
	$(BIN)/ruff check energon_dali kernels tests benchmarks examples tools setup.py train.py
	$(BIN)/ruff format --check --quiet energon_dali kernels tests benchmarks examples tools setup.py train.py
	$(BIN)/mypy
	$(BIN)/python tools/house.py --check

# The pages are built from the sources without importing them, so torch is not needed.
$(DOCS_STAMP): constraints-ci.txt
	test -x $(DOCS_VENV)/bin/python || $(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(DOCS_VENV)/bin/python -m pip install --quiet --constraint constraints-ci.txt \
		mkdocs mkdocs-material 'mkdocstrings[python]' ruff
	@touch $@

docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/python -m mkdocs build --strict --quiet

# The smoke test runs twice: after a plain installation, with PIL and PyAV, and then with DALI.
dist: $(STAMP)
	rm -rf dist build $(DIST_VENV)
	$(BIN)/python -m build --outdir dist .
	$(PYTHON) -m venv $(DIST_VENV)
	$(DIST_VENV)/bin/python -m pip install --quiet --constraint constraints-ci.txt $(TORCH)
	$(DIST_VENV)/bin/python -m pip install --quiet --constraint constraints-ci.txt dist/*.whl
	$(DIST_VENV)/bin/python tools/smoke_test.py
	$(DIST_VENV)/bin/python -m pip install --quiet --constraint constraints-ci.txt "$$(ls dist/*.whl)[$(DALI)]"
	$(DIST_VENV)/bin/python tools/smoke_test.py

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

bench: $(STAMP) $(ENERGON_STAMP)
	mkdir -p $(dir $(BENCH_JSON)) $(dir $(BENCH_PLOT))
	$(BIN)/python -m benchmarks.run cpu --json $(BENCH_JSON) $(if $(BENCH_REPETITIONS),--repetitions $(BENCH_REPETITIONS))
	$(BIN)/python -m benchmarks.plot $(BENCH_JSON) $(BENCH_PLOT)

# torchcodec loads the system's FFmpeg libraries; without them it is skipped.
bench-video: $(STAMP) $(ENERGON_STAMP)
	command -v ffmpeg >/dev/null || { test "$$(id -u)" = 0 && apt-get install -y -q ffmpeg; } || \
		echo "No FFmpeg on this system: install Debian's package ffmpeg to compare with torchcodec."
	mkdir -p $(dir $(VIDEO_JSON)) $(dir $(VIDEO_PLOT))
	$(BIN)/python -m benchmarks.run video --json $(VIDEO_JSON) $(if $(BENCH_REPETITIONS),--repetitions $(BENCH_REPETITIONS))
	$(BIN)/python -m benchmarks.plot $(VIDEO_JSON) $(VIDEO_PLOT)

bench-trainer: $(STAMP)
	mkdir -p $(dir $(TRAINER_JSON)) $(dir $(TRAINER_PLOT))
	$(BIN)/python -m benchmarks.run trainer --json $(TRAINER_JSON) $(if $(BENCH_REPETITIONS),--repetitions $(BENCH_REPETITIONS))
	$(BIN)/python -m benchmarks.plot $(TRAINER_JSON) $(TRAINER_PLOT)

bench-packing: $(STAMP) $(if $(ENERGON_PYTHON),,$(ENERGON_STAMP))
	$(BIN)/python -m benchmarks.run packing --json $(PACKING_JSON) $(QUICK) \
		$(if $(BENCH_REPETITIONS),--repetitions $(BENCH_REPETITIONS))
	$(BIN)/python -m benchmarks.plot $(PACKING_JSON) $(PACKING_PLOT)

bench-first-batch: $(STAMP) $(if $(ENERGON_PYTHON),,$(ENERGON_STAMP))
	$(BIN)/python -m benchmarks.run first-batch --json $(FIRST_JSON) $(QUICK) \
		$(if $(BENCH_REPETITIONS),--repetitions $(BENCH_REPETITIONS))
	$(BIN)/python -m benchmarks.plot $(FIRST_JSON) $(FIRST_PLOT)

bench-vision: $(STAMP) $(if $(ENERGON_PYTHON),,$(ENERGON_STAMP))
	$(BIN)/python -m benchmarks.run vision --json $(VISION_JSON) $(QUICK) \
		$(if $(BENCH_REPETITIONS),--repetitions $(BENCH_REPETITIONS))
	$(BIN)/python -m benchmarks.plot $(VISION_JSON) $(VISION_PLOT)

# An environment that ENERGON_PYTHON or PEERS_PYTHON names is not made. QUICK=--quick tests that the benchmarks run.
bench-remote: $(STAMP) $(if $(ENERGON_PYTHON),,$(ENERGON_STAMP)) $(if $(PEERS_PYTHON),,$(PEERS_STAMP))
	$(BIN)/python -m benchmarks.run remote --json $(REMOTE_JSON) $(QUICK) $(if $(BENCH_CACHE),--cache $(BENCH_CACHE)) \
		$(if $(BENCH_REPETITIONS),--repetitions $(BENCH_REPETITIONS))
	$(BIN)/python -m benchmarks.remote.plot $(REMOTE_JSON) $(REMOTE_PLOT)
	$(if $(QUICK),,$(BIN)/python -m benchmarks.remote.opening)
	$(if $(QUICK),,$(BIN)/python -m benchmarks.remote.preparing --ray \
		--energon $(dir $(or $(ENERGON_PYTHON),$(ENERGON_VENV)/bin/python))energon)
	$(if $(QUICK),,$(BIN)/python -m benchmarks.remote.tables $(REMOTE_JSON) docs/remote.md)

# SPDL loads the system's FFmpeg libraries; without them, that candidate is left out.
bench-peers: $(STAMP) $(if $(ENERGON_PYTHON),,$(ENERGON_STAMP)) $(if $(PEERS_PYTHON),,$(PEERS_STAMP))
	command -v ffmpeg >/dev/null || { test "$$(id -u)" = 0 && apt-get install -y -q ffmpeg; } || \
		echo "No FFmpeg on this system: install Debian's package ffmpeg to compare with SPDL's decoder."
	$(BIN)/python -m benchmarks.run peers --json $(PEERS_JSON) $(QUICK) $(if $(BENCH_CACHE),--cache $(BENCH_CACHE)) \
		$(if $(BENCH_REPETITIONS),--repetitions $(BENCH_REPETITIONS))
	$(BIN)/python -m benchmarks.plot $(PEERS_JSON) $(PEERS_PLOT)

bench-scale: $(STAMP) $(if $(ENERGON_PYTHON),,$(ENERGON_STAMP))
	$(BIN)/python -m benchmarks.run scale --json $(SCALE_JSON) $(QUICK) $(if $(BENCH_CACHE),--cache $(BENCH_CACHE)) \
		$(if $(BENCH_REPETITIONS),--repetitions $(BENCH_REPETITIONS))
	$(BIN)/python -m benchmarks.remote.plot $(SCALE_JSON) $(SCALE_PLOT)
	$(if $(QUICK),,$(BIN)/python -m benchmarks.remote.tables $(SCALE_JSON) docs/remote.md)

bench-streams: $(STAMP)
	$(BIN)/python -m benchmarks.run streams --json $(STREAMS_JSON) $(QUICK) $(if $(BENCH_CACHE),--cache $(BENCH_CACHE)) \
		$(if $(BENCH_REPETITIONS),--repetitions $(BENCH_REPETITIONS))
	$(BIN)/python -m benchmarks.remote.plot $(STREAMS_JSON) $(STREAMS_PLOT)
	$(if $(QUICK),,$(BIN)/python -m benchmarks.remote.tables $(STREAMS_JSON) docs/remote.md)

bench-small: $(STAMP) $(if $(ENERGON_PYTHON),,$(ENERGON_STAMP)) $(if $(PEERS_PYTHON),,$(PEERS_STAMP))
	$(BIN)/python -m benchmarks.run small --json $(SMALL_JSON) $(QUICK) $(if $(BENCH_CACHE),--cache $(BENCH_CACHE)) \
		$(if $(BENCH_REPETITIONS),--repetitions $(BENCH_REPETITIONS))
	$(BIN)/python -m benchmarks.plot $(SMALL_JSON) $(SMALL_PLOT)

# On a host whose own Python has torch and DALI, no setup is needed: PYTHON=python3 benchmarks/gpu.sh FOLDER.
gpu:
	benchmarks/gpu.sh $(OUT) --device $(DEVICE) $(QUICK) $(if $(STAGES),--stage $(STAGES))

clean:
	rm -rf $(VENV) $(ENERGON_VENV) $(PEERS_VENV) $(DOCS_VENV) $(DIST_VENV) site build dist ./*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis demo results-gpu
