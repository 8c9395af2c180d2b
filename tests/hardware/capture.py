# SPDX-License-Identifier: Apache-2.0
"""Captures and replays CUDA graphs until DIR/stop exists, and checks every replay.

capture.py --gate DIR      last line: {"captures": N, "replays": N, "wrong": N, "unequal": N}

A profiler is armed and disarmed meanwhile: a capture that it invalidated raises, a graph that it
damaged replays wrong numbers. "wrong": not close to what the same operations give without a graph;
"unequal": not bit for bit what a graph gives that was captured before anybody attached."""
import argparse
import json
import os

import torch


def body(x, w):
    y = x
    for _ in range(4):
        y = torch.relu(y @ w) + x
    return y


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gate", required=True)
    options = parser.parse_args()
    torch.manual_seed(1)
    x = torch.randn(256, 256, device="cuda")
    w = torch.randn(256, 256, device="cuda") / 256
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # as torch asks: warm up on a side stream before capturing
        for _ in range(3):
            body(x, w)
    torch.cuda.synchronize()
    reference_graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(reference_graph):
        reference = body(x, w)
    captures = replays = wrong = unequal = 0
    open(os.path.join(options.gate, "ready"), "w").close()
    while not os.path.exists(os.path.join(options.gate, "stop")):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = body(x, w)
        captures += 1
        for _ in range(5):
            x.copy_(torch.randn_like(x))
            graph.replay()
            reference_graph.replay()
            replays += 1
            unequal += not torch.equal(output, reference)
            if not torch.allclose(output, body(x, w), rtol=1e-4, atol=1e-4):
                wrong += 1
        del graph, output
    print(json.dumps({"captures": captures, "replays": replays, "wrong": wrong, "unequal": unequal}))


if __name__ == "__main__":
    main()
