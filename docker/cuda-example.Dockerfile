# SPDX-License-Identifier: Apache-2.0
# A CUDA image whose processes can be profiled at any time: the shim and one variable. Nothing else of
# the image changes, and until somebody attaches the shim sleeps. Usually neither line is wanted in the
# image: docker/README.md does the same from outside.
#   docker build -f docker/cuda-example.Dockerfile --build-arg BASE=my-training-image .
ARG BASE=nvidia/cuda:13.0.1-runtime-ubuntu24.04
ARG SHIM=gpu-profiled-shim
FROM ${SHIM} AS shim
FROM ${BASE}
COPY --from=shim /shim/ /opt/gpu-profiled/
ENV CUDA_INJECTION64_PATH=/opt/gpu-profiled/libgpu-profiled-cupti.so
