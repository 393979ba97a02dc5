# For GPU hosts with a driver from 580 on:
#   docker build -t energon-dali .
#   docker run --rm --gpus all energon-dali doctor
FROM nvidia/cuda:13.0.1-base-ubuntu24.04

# CUDA's images default to compute and utility, with which NVDEC, the decoder of videos, is missing.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility,video

# Triton compiles its link to the driver when the first kernel runs: gcc, the C library's headers, and Python.h.
# Ubuntu's security updates are wanted: versions are not pinned.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

ENV VIRTUAL_ENV=/opt/venv \
    PATH=/opt/venv/bin:$PATH \
    PIP_NO_CACHE_DIR=1
RUN python3 -m venv /opt/venv

# torch's wheel contains the CUDA libraries; the driver's are mounted into the container when it starts.
RUN pip install torch==2.13.0

WORKDIR /src
COPY . .
RUN pip install --constraint constraints-ci.txt ".[cuda13,metrics]"

# Shows, without a GPU, that the installation is complete. The working directory is not the checkout.
WORKDIR /workspace
RUN python /src/tools/smoke_test.py

ENTRYPOINT ["energon-dali"]
CMD ["doctor"]
