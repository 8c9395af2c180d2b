# SPDX-License-Identifier: Apache-2.0
"""A small PyTorch training loop of fixed work: train.py [--steps N] [--gate DIR].

Last line: {"steps": N, "step_ms": median, "loss": last loss}.
train.py --serve: does as many steps as each line of standard input says and answers with
{"steps": N, "step_ms": wall time / N}."""
import argparse
import json
import statistics
import sys
import time

import torch

from gate import Gate


class Model(torch.nn.Module):
    """A convolution part and a transformer layer: many small kernels, some large ones, autograd's thread."""

    def __init__(self):
        super().__init__()
        self.image = torch.nn.Sequential(
            torch.nn.Conv2d(3, 64, 3), torch.nn.BatchNorm2d(64), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(8),
            torch.nn.Flatten(), torch.nn.Linear(64 * 64, 1000))
        self.text = torch.nn.TransformerEncoderLayer(512, 8, batch_first=True, dropout=0.0)

    def forward(self, image, text):
        return self.image(image).logsumexp(1).mean() + self.text(text).pow(2).mean()


def train_step(model, optimizer, image, text):
    optimizer.zero_grad()
    loss = model(image, text)
    loss.backward()
    optimizer.step()
    return loss.detach()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--gate")
    parser.add_argument("--serve", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(1)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    image = torch.randn(16, 3, 64, 64, device="cuda")
    text = torch.randn(8, 128, 512, device="cuda")
    marker = torch.zeros(32, device="cuda")
    for _ in range(5):  # lazy loading and the allocator settle before the gate
        train_step(model, optimizer, image, text)
    torch.cuda.synchronize()

    if options.serve:
        for line in sys.stdin:
            start = time.perf_counter()
            for _ in range(int(line)):
                train_step(model, optimizer, image, text)
            torch.cuda.synchronize()
            print(json.dumps({"steps": int(line), "step_ms": (time.perf_counter() - start) / int(line) * 1e3}), flush=True)
        print(json.dumps({"end": True}), flush=True)
        return

    def beat():  # a kernel that the training itself never launches
        torch.special.bessel_j0(marker)

    gate = Gate(options.gate)
    gate.open(beat)
    times = []
    for _ in range(options.steps):
        start = time.perf_counter()
        loss = train_step(model, optimizer, image, text)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    gate.close(beat)
    torch.cuda.synchronize()
    print(json.dumps({"steps": options.steps, "step_ms": statistics.median(times) * 1e3, "loss": loss.item()}))


if __name__ == "__main__":
    main()
