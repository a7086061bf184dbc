# CPU:   docker build -t genda-mjx .
# CUDA:  docker build -t genda-mjx --build-arg ACCELERATOR=cuda12 .   then: docker run --gpus all ...
# jax's CUDA wheels bring CUDA and cuDNN; the host needs only NVIDIA's driver and container toolkit.
FROM python:3.12-slim
ARG ACCELERATOR=""

RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
ENV MUJOCO_GL=disable PATH=/genda-mjx/.venv/bin:$PATH

WORKDIR /genda-mjx
COPY requirements.txt Makefile ./
RUN make setup ACCELERATOR=$ACCELERATOR
COPY . .

# Runs and compiled programs outlive the container: docker run -v $PWD/runs:/genda-mjx/runs -v $PWD/.cache:/genda-mjx/.cache
ENTRYPOINT ["python", "train.py"]
CMD ["--help"]
