# SPDX-License-Identifier: Apache-2.0
"""A recorded session's text (tests/fake_cuda/README.md has the format): what it says, and the same run played otherwise."""
import collections
import dataclasses
import re

PC_WORD = re.compile(r"(0x[0-9a-f]+):(\w+)\*(\d+)/(\d+)$")


@dataclasses.dataclass
class Weight:
    """Samples of one (pc, stall), and those of cycles in which nothing was issued."""
    all: int = 0
    not_issued: int = 0

    def add(self, other):
        self.all += other.all
        self.not_issued += other.not_issued


def option(words, name):
    """The value of NAME= on a line; "" without."""
    return next((word[len(name) + 1:] for word in words if word.startswith(f"{name}=")), "")


def parse_pcs(words):
    """(kernel, the words of its rate, {(pc, stall): Weight}) of a `pcs` line."""
    rate = [word for word in words[2:] if "=" in word]
    weights = {}
    for word in words[2 + len(rate):]:
        match = PC_WORD.match(word)
        if not match:
            raise ValueError(f"not as the recorder writes it: {word}")
        pc, stall, everything, not_issued = match.groups()
        weights[int(pc, 16), stall] = Weight(int(everything), int(not_issued))
    return words[1], rate, weights


def pcs_line(kernel, rate, weights):
    """As the recorder writes it."""
    return " ".join(["pcs", kernel, *rate, *(f"{pc:#x}:{stall}*{weight.all}/{weight.not_issued}"
                                             for (pc, stall), weight in sorted(weights.items()))])


class Session:
    def __init__(self, text):
        self.lines = text.splitlines()

    def rows(self, verb):
        """The words of each line that begins with `verb`."""
        return [line.split() for line in self.lines if line.split()[:1] == [verb]]

    def functions(self):
        """Kernel's id -> function."""
        return {words[1]: option(words, "function") for words in self.rows("kernel")}

    def weights(self):
        """Function -> {(pc, stall): Weight}."""
        functions = self.functions()
        return {functions[kernel]: weights for kernel, _, weights in map(parse_pcs, self.rows("pcs"))}

    def threads(self):
        """[(line of `thread`, rate, the lines of its calls)]"""
        threads = []
        for line in self.lines:
            words = line.split()
            if words[:1] == ["thread"]:
                threads.append([line, 0, []])
            elif threads and words[:1] == ["rate"]:
                threads[-1][1] = int(words[1])
            elif threads and words:
                threads[-1][2].append(line)
        return threads

    def launches(self):
        """Function -> launches outside of graphs."""
        functions, counts = self.functions(), collections.Counter()
        for _, _, calls in self.threads():
            for words, times in unrolled(calls):
                if words[0] in ("launch", "cooperate"):
                    counts[functions[words[1]]] += times
        return counts

    def replayed(self, passes, seconds, *paths):
        """The text of this run made `passes` times, each thread at a rate of its own so that a pass takes it
        `seconds`; below each of `paths` in turn, where there are any."""
        head = self.lines[:next(i for i, line in enumerate(self.lines) if line.startswith("thread"))]
        text = list(head)
        for thread, _, calls in self.threads():
            rate = max(1, round(sum(times for _, times in unrolled(calls)) / seconds))
            text += [thread, f"  rate {rate}", f"  loop {passes}"]
            for path in paths or [""]:
                text += [f"  path {path}"] if path else []
                text += calls
            text += ["  end"]
        return "\n".join(text) + "\n"


def unrolled(calls):
    """[(words, how often)] of the lines that launch or copy something."""
    out, loops = [], [1]
    for words in map(str.split, calls):
        if words[0] == "loop":
            loops.append(loops[-1] * int(words[1]))
        elif words[0] == "end":
            loops.pop()
        else:
            out.append((words, int(option(words, "count") or 1) * loops[-1]))
    return out
