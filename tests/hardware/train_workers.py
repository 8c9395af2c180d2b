# SPDX-License-Identifier: Apache-2.0
"""A training loop fed by a DataLoader: train_workers.py --start fork|spawn --workers N --row-kernels N [--steps N] [--gate DIR].

fork: the workers are forked after CUDA is in use and use no GPU. spawn: each worker prepares its rows on the GPU.
The work between the gate's go and its done is fixed: a step launches `gammaln` once in the training process, and a
worker launches `erfcx` --row-kernels times for each row. Beats before and after launch other kernels.
Last line: {"pid": N, "steps": N, "rows": {worker's pid: rows of the fixed work}, "loss": last loss}."""
import argparse
import collections
import json
import os

import torch

BATCH = 4
COUNTED = 1 << 20  # row numbers from here on are the fixed work's


class Rows(torch.utils.data.Dataset):
    def __init__(self, gpu_kernels):
        self.gpu_kernels = gpu_kernels

    def __getitem__(self, index):
        row = torch.full((1024,), float(index % 7))
        if self.gpu_kernels:
            prepare(row, index, self.gpu_kernels)
        return os.getpid(), row

    def __len__(self):
        return 2 * COUNTED


def prepare(row, index, kernels):
    """The worker's own GPU work; what it launches says whether the row is of the fixed work."""
    x = row.cuda()
    for _ in range(kernels):
        x = torch.special.erfcx(x) if index >= COUNTED else torch.special.bessel_j0(x)
    torch.cuda.synchronize()


class Numbers:
    """Row numbers of one pass; workers that persist take the next pass's from the same object."""

    def __init__(self, batches):
        self.first, self.batches = 0, batches

    def __iter__(self):
        return iter([self.first + BATCH * i + j for j in range(BATCH)] for i in range(self.batches))

    def __len__(self):
        return self.batches


def train_step(batch, weight, optimizer):
    optimizer.zero_grad()
    loss = (batch @ weight).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--start", choices=("fork", "spawn"), required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--row-kernels", type=int, required=True)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--gate")
    options = parser.parse_args()
    torch.manual_seed(1)
    weight = torch.nn.Parameter(torch.randn(1024, 1024, device="cuda") / 32)
    optimizer = torch.optim.AdamW([weight])
    marker = torch.zeros(32, device="cuda")
    numbers = Numbers(options.workers)
    rows_of = Rows(options.row_kernels if options.start == "spawn" else 0)
    loader = torch.utils.data.DataLoader(rows_of, batch_sampler=numbers, num_workers=options.workers,
                                         multiprocessing_context=options.start, persistent_workers=True)
    rows = collections.Counter()

    def one_pass(each):
        loss = None
        for pids, batch in loader:
            loss = train_step(batch.cuda(), weight, optimizer)
            each(pids)
        torch.cuda.synchronize()
        return loss

    def beat_until(name):
        while not os.path.exists(os.path.join(options.gate, name)):
            one_pass(lambda pids: torch.special.bessel_j1(marker))

    def count(pids):
        torch.special.gammaln(marker)
        for pid in pids.tolist():
            rows[pid] += 1

    one_pass(lambda pids: None)
    if options.gate:
        open(os.path.join(options.gate, "ready"), "w").close()
        beat_until("go")
    numbers.first, numbers.batches = COUNTED, options.steps
    loss = one_pass(count)
    numbers.first, numbers.batches = 0, options.workers
    if options.gate:
        open(os.path.join(options.gate, "done"), "w").close()
        beat_until("stop")
    print(json.dumps({"pid": os.getpid(), "steps": options.steps, "rows": rows, "loss": loss.item()}))


if __name__ == "__main__":
    main()
