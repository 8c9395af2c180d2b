# SPDX-License-Identifier: Apache-2.0
"""Another client of CUPTI in the profiled process (torch.profiler, Proton, nsys): before, between, during and after
attaches, and in a pause that --yield makes for it. Each execution that CUPTI recorded was the one's or the other's,
counted by each: nothing of theirs is touched, and nothing of ours is lost unsaid.

Run by ctest: other_clients.py CASE --build DIR."""

import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pprof_raw
from bench import (PATIENCE, STATE_IDLE, STATE_TRACING, check, check_identity, emitted, equal, read_truth,
                   run_named_case, run_on_bench, status, wait_for, wait_for_memfd, wait_for_state)

STATE_BUSY = 7
MULTIPLE_SUBSCRIBERS = 39  # CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
LONGEST_NS = 20_000  # more than any kernel of the workload takes: kernels.cc
WORK = 0.5  # seconds of launches for one of the two


class Client:
    """workload_client, driven over its pipes; `process` may be its parent."""

    def __init__(self, process):
        self.process = process
        self.received = self.gpu_ns = 0

    def ask(self, word):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        check(line, f"the client ended at '{word}': {self.process.poll()}")
        return json.loads(line)

    def open(self, want=0):
        equal(self.ask("open")["subscribe"], want, "what cuptiSubscribe answers the other client")

    def close(self):
        """Each of its launches since the open has its record."""
        got = self.ask("close")
        check(got["launched"] > 50, f"too little work: {got}")
        equal(got["received"], got["launched"], "executions that the other client recorded")
        self.received += got["received"]
        self.gpu_ns += got["gpu_ns"]

    def session(self):
        self.open()
        time.sleep(WORK)
        self.close()

    def end(self):
        self.process.stdin.write("end\n")
        self.process.stdin.close()
        equal(self.process.wait(PATIENCE), 0, "the target's exit status")


class Attach:
    """A running gpu-profiled, its messages, and what it received."""

    def __init__(self, bench, command, name, **more):
        self.profile, self.summary = bench.dir / f"{name}.pb.gz", bench.dir / f"{name}.json"
        self.errors = (bench.dir / f"{name}.stderr").open("w+")
        self.process = bench.spawn([str(bench.daemon), *command[:1], "-o", str(self.profile), "--summary-json",
                                    str(self.summary), *command[1:]], more.pop("env", None) or bench.env(),
                                   stderr=self.errors, **more)

    def said(self):
        return pathlib.Path(self.errors.name).read_text()

    def wait_for_line(self, text):
        wait_for(lambda: text in self.said(), f"gpu-profiled says '{text}': {self.said()}")

    def end(self, interrupt=True):
        """(executions, gpu_ns, summary)"""
        if interrupt:
            self.process.send_signal(signal.SIGINT)
        equal(self.process.wait(PATIENCE), 0, f"exit status of gpu-profiled ({self.said()})")
        summary = json.loads(self.summary.read_text())
        check_identity(summary["total"])
        profile = pprof_raw.load(self.profile)
        received = summary["total"]["executions"]["received"]
        equal(profile.total("gpu_executions"), received, "executions in the profile")
        return received, profile.total(), summary


def attach(bench, pid, *options, name="attach"):
    # The option and its value stand together.
    return Attach(bench, [f"--pid={pid}", *options], name)


def wait_for_work(pid, more=200):
    before = emitted(pid)
    wait_for(lambda: emitted(pid) >= before + more, "the target is traced")


def start_client(bench, **settings):
    process = bench.spawn(bench.workload(1000, name="workload_client"),
                          bench.env(CUDA_INJECTION64_PATH=bench.shim, FAKE_CUDA_TRUTH=bench.truth_file(),
                                    FAKE_CUDA_REPORT=bench.dir / "violations", **settings),
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait_for_memfd(process.pid)
    return Client(process)


def check_shares(bench, client, *ours):
    """What CUPTI recorded is what the two have received, to the record and the nanosecond."""
    client.end()
    truth = read_truth(bench.truth_file())
    equal(sum(received for received, _, _ in ours) + client.received, truth["recorded_executions"],
          f"executions: the other client's {client.received} and ours {[mine[0] for mine in ours]}")
    equal(sum(gpu_ns for _, gpu_ns, _ in ours) + client.gpu_ns, truth["recorded_gpu_ns"], "gpu_time of both")
    equal(truth["cupti"]["subscribes"], truth["cupti"]["unsubscribes"], "subscribed and unsubscribed")
    check(truth["executions"] > truth["recorded_executions"], "nobody's work: the case tests nothing")
    return truth


def case_idle(bench):
    """Nobody attached: the other client has CUPTI as though there were no shim."""
    client = start_client(bench)
    client.session()
    client.session()
    truth = check_shares(bench, client)
    equal(truth["cupti"]["subscribes"], 2, "the other client's subscriptions alone")
    equal(truth["cupti"]["callbacks"], 0, "callbacks made")


def doctor_says(bench, pid, text, code):
    """In its row, or a warning of it."""
    told = subprocess.run([str(bench.daemon), "doctor", "--pid", str(pid), "--json"], env=bench.env(), text=True,
                          capture_output=True, check=False, timeout=PATIENCE)
    equal(told.returncode, code, f"exit status of doctor ({told.stdout})")
    row = json.loads(told.stdout)["processes"][0]
    check(any(text in line for line in [row["finding"], *row["warnings"]]), f"doctor does not say '{text}': {row}")
    equal(row["cupti_users"], ["Triton's Proton"], "CUPTI's users in it")


def proton(bench):
    """LD_PRELOAD of a library that is called as Proton's."""
    library = bench.dir / "libproton.so"
    shutil.copy(bench.build / "tests/e2e/workload/libworkload_named_library.so", library)
    return bench.preload(library)


def case_before(bench):
    """It holds CUPTI when gpu-profiled comes: busy, told, shown by doctor; once it ends tracing begins by itself."""
    # That one client subscribes while the other is inside CUPTI nobody can prevent.
    client = start_client(bench, FAKE_CUDA_ALLOW="two-threads", LD_PRELOAD=proton(bench))
    pid = client.process.pid
    client.open()
    mine = attach(bench, pid)
    wait_for_state(pid, STATE_BUSY)
    mine.wait_for_line("another CUPTI client")
    doctor_says(bench, pid, "(in it: Triton's Proton)", 3)
    client.close()
    wait_for_state(pid, STATE_TRACING)
    wait_for_work(pid)
    ours = mine.end()
    equal(mine.said().count("holds the profiling interface"), 1, f"told once: {mine.said()}")
    equal(ours[2]["targets"][0]["gaps"]["count"], 0, "gaps: it had not begun")
    check_shares(bench, client, ours)


def case_between(bench):
    """One after another, twice."""
    client = start_client(bench)
    ours = []
    for turn in range(2):
        mine = attach(bench, client.process.pid, name=f"attach{turn}")
        wait_for_state(client.process.pid, STATE_TRACING)
        wait_for_work(client.process.pid)
        ours.append(mine.end())
        client.session()
    check_shares(bench, client, *ours)


def case_during(bench):
    """It comes while gpu-profiled is attached: CUPTI refuses it, our trace has no hole; afterwards it gets CUPTI."""
    client = start_client(bench, FAKE_CUDA_ALLOW="two-threads", LD_PRELOAD=proton(bench))
    pid = client.process.pid
    mine = attach(bench, pid)
    wait_for_state(pid, STATE_TRACING)
    doctor_says(bench, pid, "Triton's Proton in it gets no GPU events while it is profiled", 0)
    for _ in range(3):
        client.open(MULTIPLE_SUBSCRIBERS)
        wait_for_work(pid)
    ours = mine.end()
    equal(ours[2]["targets"][0]["gaps"]["count"], 0, "gaps")
    client.session()
    check_shares(bench, client, ours)


def yield_cupti(mine):
    mine.process.send_signal(signal.SIGUSR1)
    mine.wait_for_line("CUPTI is yielded (SIGUSR1)")


def take_back(mine, pid):
    mine.process.send_signal(signal.SIGUSR2)
    mine.wait_for_line("CUPTI is taken back (SIGUSR2)")
    wait_for_state(pid, STATE_TRACING)
    wait_for_work(pid)


def case_yield(bench):
    """SIGUSR1 makes room for it without an end of the run, SIGUSR2 goes on; the pause is told as what it is."""
    client = start_client(bench)
    pid = client.process.pid
    mine = attach(bench, pid, "--yield")
    wait_for_state(pid, STATE_TRACING)
    wait_for_work(pid)
    yield_cupti(mine)
    mine.process.send_signal(signal.SIGUSR1)  # once more changes nothing
    client.session()
    equal(status(pid)[0], STATE_IDLE, "the state beside the other client")
    take_back(mine, pid)
    ours = mine.end()
    gaps = ours[2]["targets"][0]["gaps"]
    equal((gaps["count"], gaps["cause"], gaps["implausible"]), (1, "yielded", False), "the gap in the summary")
    check(WORK <= gaps["total_ns"] / 1e9 <= PATIENCE, f"a gap of {gaps['total_ns']} ns")
    check(re.search(r"gap +process \d+ was not traced for .* \(1 gap\): CUPTI was yielded", mine.said()), mine.said())
    check_shares(bench, client, ours)


def case_yield_busy(bench):
    """It is taken back while the other client still has it: busy, and on once that ends."""
    client = start_client(bench, FAKE_CUDA_ALLOW="two-threads")
    pid = client.process.pid
    mine = attach(bench, pid, "--yield")
    wait_for_state(pid, STATE_TRACING)
    wait_for_work(pid)
    yield_cupti(mine)
    client.open()
    mine.process.send_signal(signal.SIGUSR2)
    wait_for_state(pid, STATE_BUSY)
    mine.wait_for_line("another CUPTI client")
    client.close()
    wait_for_state(pid, STATE_TRACING)
    wait_for_work(pid)
    ours = mine.end()
    equal(ours[2]["targets"][0]["gaps"]["cause"], "yielded", "the gap in the summary")
    check_shares(bench, client, ours)


def case_yield_quiet(bench):
    """A process that launches nothing cannot let go of CUPTI: that is told, and its next launch does it."""
    client = start_client(bench)
    mine = attach(bench, client.process.pid, "--yield")
    wait_for_state(client.process.pid, STATE_TRACING)
    wait_for_work(client.process.pid)
    client.ask("stop")
    mine.process.send_signal(signal.SIGUSR1)
    mine.wait_for_line("will give CUPTI up with the next kernel launch")
    check("CUPTI is yielded" not in mine.said(), mine.said())
    client.ask("go")
    mine.wait_for_line("CUPTI is yielded (SIGUSR1)")
    client.session()
    check_shares(bench, client, mine.end())


def case_yield_unasked(bench):
    """Without --yield SIGUSR1 ends an attach, as other signals do; its profile is written."""
    client = start_client(bench)
    mine = attach(bench, client.process.pid)
    wait_for_state(client.process.pid, STATE_TRACING)
    wait_for_work(client.process.pid)
    mine.process.send_signal(signal.SIGUSR1)
    ours = mine.end(interrupt=False)
    client.session()
    check_shares(bench, client, ours)


def case_yield_run(bench):
    """Under `run` the two signals are gpu-profiled's, not the command's, and a process that starts in the pause
    gives CUPTI up as well."""
    script = ('exec 3<&0; "$1" 1000 <&3 & client=$!; until test -e go; do sleep 0.05; done; '
              'FAKE_CUDA_TRUTH=late.json "$2" --launches 0 --rate 1000 & echo $! > late; wait $client; kill $!; wait $!')
    programs = [bench.workload(name="workload_client")[0], bench.workload()[0]]
    mine = Attach(bench, ["run", "--yield", "--shim", str(bench.shim), "--", "/bin/sh", "-c", script, "sh", *programs],
                  "run", env=bench.env(FAKE_CUDA_TRUTH=bench.truth_file()), stdin=subprocess.PIPE,
                  stdout=subprocess.PIPE, text=True)
    client = Client(mine.process)
    client.ask("go")  # it has begun
    yield_cupti(mine)
    client.open()
    (bench.dir / "go").touch()
    wait_for(lambda: (bench.dir / "late").exists() and (bench.dir / "late").read_text().strip(), "a late process")
    late = int((bench.dir / "late").read_text())
    wait_for_memfd(late)
    wait_for_state(late, STATE_IDLE)
    time.sleep(WORK)
    equal(status(late)[0], STATE_IDLE, "the state of a process that began in the pause")
    client.close()
    mine.process.send_signal(signal.SIGUSR2)
    wait_for_state(late, STATE_TRACING)
    wait_for_work(late)
    client.end()
    received, gpu_ns, summary = mine.end(interrupt=False)
    truths = [read_truth(bench.truth_file()), read_truth(bench.dir / "late.json")]
    # The late process is killed while it launches: what ran then is handed out without its times.
    under_way = sum(truth["cupti"]["incomplete"] for truth in truths)
    equal(summary["total"]["executions"]["lost_in_shim"]["incomplete"], under_way, "told as under way at the end")
    equal(received + client.received + under_way, sum(truth["recorded_executions"] for truth in truths), "executions of both")
    missing_ns = sum(truth["recorded_gpu_ns"] for truth in truths) - gpu_ns - client.gpu_ns
    equal(missing_ns > 0, under_way > 0, f"gpu_time of both lacks {missing_ns} ns")
    check(0 <= missing_ns <= under_way * LONGEST_NS, f"gpu_time of both lacks {missing_ns} ns")
    equal({target["gaps"]["cause"] for target in summary["targets"]}, {"yielded"}, "the gaps in the summary")


CASES = {name[5:]: value for name, value in globals().items() if name.startswith("case_")}


if __name__ == "__main__":
    sys.exit(run_named_case(CASES, __doc__, run_on_bench))
