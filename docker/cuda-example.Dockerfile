# SPDX-License-Identifier: Apache-2.0
# A CUDA image whose processes can be profiled at any time: the shim and one variable. Nothing else of
# the image changes, and until somebody attaches the shim sleeps. Usually neither line is wanted in the
# image: the same is done from outside with -v and -e (README).
#   docker build -f docker/cuda-example.Dockerfile --build-arg BASE=my-training-image .
ARG BASE=nvidia/cuda:13.0.1-runtime-ubuntu24.04
FROM ${BASE}
COPY libgpu-profiled-cupti.so /opt/gpu-profiled/libgpu-profiled-cupti.so
ENV CUDA_INJECTION64_PATH=/opt/gpu-profiled/libgpu-profiled-cupti.so
