# SPDX-License-Identifier: Apache-2.0
"""Two ranks that sum a tensor again and again with NCCL: nccl_loop.py [--steps N] [--ranks N].

On as many GPUs as there are; with fewer than ranks several share one, which NCCL may refuse: then
{"not_possible": reason} and status 4. Last line: {"steps": N, "right": bool, "devices": N}.
A rank ends itself after --limit seconds, wherever it hangs."""
import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile

REFUSED = 4


def rank_main(options):
    signal.alarm(options.limit)
    import torch
    import torch.distributed as dist

    devices = torch.cuda.device_count()
    torch.cuda.set_device(options.rank % devices)
    try:
        dist.init_process_group("nccl", init_method=f"file://{options.store}", rank=options.rank, world_size=options.ranks)
        first = torch.ones(4, device="cuda")
        dist.all_reduce(first)
        torch.cuda.synchronize()
    except (dist.DistBackendError, RuntimeError) as error:
        text = str(error)
        if devices < options.ranks and "uplicate GPU" in text:
            print(json.dumps({"not_possible": f"NCCL refuses {options.ranks} ranks on {devices} GPU"}), flush=True)
            os._exit(REFUSED)
        raise
    right = True
    x = torch.full((1 << 20,), float(options.rank + 1), device="cuda")
    w = torch.randn(1024, 1024, device="cuda")
    want = options.ranks * (options.ranks + 1) / 2
    for step in range(options.steps):
        y = x.clone()
        dist.all_reduce(y)
        w = torch.tanh(w @ w)  # work of its own between the collectives
        if step % 50 == 0:
            right = right and bool((y == want).all())
    torch.cuda.synchronize()
    dist.destroy_process_group()
    print(json.dumps({"steps": options.steps, "right": right, "devices": min(devices, options.ranks)}), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--limit", type=int, default=80)
    parser.add_argument("--rank", type=int, default=-1)
    parser.add_argument("--store")
    options = parser.parse_args()
    if options.rank >= 0:
        return rank_main(options)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, os.path.abspath(__file__), "--steps", str(options.steps), "--ranks", str(options.ranks),
                   "--limit", str(options.limit), "--store", os.path.join(folder, "store")]
        ranks = [subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE, text=True)
                 for rank in range(options.ranks)]
        outputs = [rank.communicate()[0] for rank in ranks]
    lines = [json.loads(line) for output in outputs for line in output.splitlines() if line.startswith("{")]
    refused = [line for line in lines if "not_possible" in line]
    if refused:
        print(json.dumps(refused[0]))
        return REFUSED
    status = max(abs(rank.returncode) for rank in ranks)
    if status == 0:
        print(json.dumps({**lines[0], "right": len(lines) == options.ranks and all(line["right"] for line in lines)}))
    return status


if __name__ == "__main__":
    sys.exit(main())
