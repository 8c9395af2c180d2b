# SPDX-License-Identifier: Apache-2.0
"""torch.profiler in one process at several moments; each moment waits for DIR/<name>.

profiler.py --gate DIR --moments before,after
One line a moment: {"moment": name, "cuda_events": N}. DIR/<name>.done is written after each."""
import argparse
import json
import os
import time

import torch
from torch.profiler import ProfilerActivity, profile


def work(x):
    y = x
    for _ in range(20):
        y = torch.relu(y @ x) * 0.001
    torch.cuda.synchronize()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gate", required=True)
    parser.add_argument("--moments", required=True)
    options = parser.parse_args()
    x = torch.randn(1024, 1024, device="cuda")
    work(x)
    open(os.path.join(options.gate, "ready"), "w").close()
    for moment in options.moments.split(","):
        while not os.path.exists(os.path.join(options.gate, moment)):
            work(x)
            time.sleep(0.002)
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as result:
            work(x)
        events = sum(e.device_type == torch.autograd.DeviceType.CUDA for e in result.events())
        print(json.dumps({"moment": moment, "cuda_events": events}), flush=True)
        open(os.path.join(options.gate, moment + ".done"), "w").close()
    while not os.path.exists(os.path.join(options.gate, "stop")):
        work(x)


if __name__ == "__main__":
    main()
