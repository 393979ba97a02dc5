# For GPU hosts with a driver from 580 on:
#   docker build -t energon-dali .
#   docker run --rm --gpus all energon-dali doctor
FROM nvidia/cuda:13.0.1-base-ubuntu24.04

RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*

ENV VIRTUAL_ENV=/opt/venv \
    PATH=/opt/venv/bin:$PATH \
    PIP_NO_CACHE_DIR=1
RUN python3 -m venv /opt/venv

WORKDIR /src
# torch's wheel brings the CUDA libraries; the base image brings what the driver's libraries are mounted into.
COPY constraints-ci.txt ./
RUN pip install torch==2.13.0

COPY . .
RUN pip install --constraint constraints-ci.txt ".[cuda13,metrics]"

# Shows, without a GPU, that everything is there; the working directory is not the checkout.
WORKDIR /workspace
RUN python /src/tools/smoke_test.py

ENTRYPOINT ["energon-dali"]
CMD ["doctor"]
