# SPDX-License-Identifier: Apache-2.0
"""A compiled PyTorch training loop of fixed work, fed by a DataLoader: train_compiled.py [--steps N] [--gate DIR].

torch.compile makes Triton kernels of the loss; the DataLoader's workers are forked after CUDA is in use.
Last line: {"steps": N, "loss": last loss}."""
import argparse
import json

import torch

from gate import Gate

WORKERS = 4


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 16

    def __getitem__(self, index):
        return torch.full((1024,), float(index % 7))


def features(x, weight):
    low = x @ weight
    return torch.nn.functional.gelu(low) * torch.sigmoid(low)


@torch.compile
def compiled_loss(x, weight):
    return (features(x, weight) - x).pow(2).mean()


def train_step(batch, weight, optimizer):
    optimizer.zero_grad()
    loss = compiled_loss(batch, weight)
    loss.backward()
    optimizer.step()
    return loss.detach()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--gate")
    options = parser.parse_args()
    torch.manual_seed(1)
    weight = torch.nn.Parameter(torch.randn(1024, 1024, device="cuda") / 32)
    optimizer = torch.optim.AdamW([weight])
    marker = torch.zeros(32, device="cuda")
    loader = torch.utils.data.DataLoader(Rows(), batch_size=256, num_workers=WORKERS, pin_memory=True)
    batches = iter(loader)
    for _ in range(3):  # compiles
        loss = train_step(next(batches).cuda(non_blocking=True), weight, optimizer)
    torch.cuda.synchronize()

    def beat():  # a kernel that the training itself never launches
        torch.special.bessel_j0(marker)

    gate = Gate(options.gate)
    gate.open(beat)
    for _ in range(options.steps):
        loss = train_step(next(batches).cuda(non_blocking=True), weight, optimizer)
    torch.cuda.synchronize()
    gate.close(beat)
    torch.cuda.synchronize()
    print(json.dumps({"steps": options.steps, "loss": loss.item()}))


if __name__ == "__main__":
    main()
