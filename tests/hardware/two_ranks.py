# SPDX-License-Identifier: Apache-2.0
"""A job of ranks as a launcher starts them: two_ranks.py [--ranks N] [--count N] [--gate DIR].

Rank r has RANK, LOCAL_RANK and WORLD_SIZE, takes GPU r of the visible ones (or the only one), and launches `erfcx`
count * (r + 1) times between the gate's go and its done; beats launch `bessel_j0`.
Last line: {"ranks": [{"rank": r, "pid": N, "uuid": "GPU-...", "launches": N}, ...]}."""
import argparse
import json
import os
import subprocess
import sys
import time

RANK_SECONDS = 120


def rank_main(options):
    import torch

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank % torch.cuda.device_count())
    x = torch.rand(1 << 16, device="cuda")
    deadline = time.monotonic() + RANK_SECONDS

    def beat_until(name):
        while not os.path.exists(os.path.join(options.gate, name)) and time.monotonic() < deadline:
            torch.special.bessel_j0(x)
            time.sleep(0.005)

    torch.special.erfcx(torch.zeros(1))  # on the CPU
    if options.gate:
        torch.special.bessel_j0(x)
        open(os.path.join(options.gate, f"ready.{rank}"), "w").close()
        beat_until("go")
    launches = options.count * (rank + 1)
    for _ in range(launches):
        torch.special.erfcx(x)
    torch.cuda.synchronize()
    if options.gate:
        open(os.path.join(options.gate, f"done.{rank}"), "w").close()
        beat_until("stop")
    torch.cuda.synchronize()
    uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    print(json.dumps({"rank": rank, "pid": os.getpid(), "uuid": uuid, "launches": launches}), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--gate")
    options = parser.parse_args()
    if "RANK" in os.environ:
        return rank_main(options)
    command = [sys.executable, os.path.abspath(__file__), "--count", str(options.count)]
    if options.gate:
        command += ["--gate", options.gate]
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True,
                              env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(options.ranks)})
             for rank in range(options.ranks)]
    for name in ("ready", "done") if options.gate else ():
        while not all(os.path.exists(os.path.join(options.gate, f"{name}.{rank}")) for rank in range(options.ranks)):
            if any(rank.poll() for rank in ranks):
                break
            time.sleep(0.01)
        open(os.path.join(options.gate, name), "w").close()
    outputs = [rank.communicate()[0] for rank in ranks]
    print(json.dumps({"ranks": [json.loads(line) for output in outputs for line in output.splitlines()]}))
    return max(abs(rank.returncode) for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
