# SPDX-License-Identifier: Apache-2.0
"""How recordings are kept: skeletons, cut weights, and the repository's own sessions."""
import pathlib
import subprocess
import tempfile
import unittest

import session_data
import session_file
import skeleton

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
SESSION = """\
# Recorded.
set devices 1
module m1 file=module-1.cubin
module m2 file=module-2.cubin
kernel k1 function=chain module=m1 duration=900/3
pcs k1 per=900 at=11 0x0:wait*1/0 0x10:selected*9/0 0x10:wait*5/2 0x20:wait*4/3 0x30:selected*1/0
kernel k2 function=opaque module=m2 duration=10/1
kernel k3 function=opaque module=m2 duration=10/1

thread t0 on=main device=0
  rate 94
  memset 4
  loop 2
    launch k1 count=3
    loop 5
      launch k2
    end
  end
thread t1 device=0
  rate 7
  cooperate k1
"""


def readelf(*arguments, image):
    with tempfile.NamedTemporaryFile() as file:
        file.write(image)
        file.flush()
        return subprocess.run(["readelf", *arguments, file.name], capture_output=True, text=True, check=True).stdout


class SkeletonTest(unittest.TestCase):
    abi = skeleton.Abi(0x33, 7, 128, 0x5a055a)
    contents = [skeleton.Function("_Z5firstv", 0x180, 0x10), skeleton.Function("second", 0x1000, 0)]

    def test_what_is_written_is_read(self):
        image = skeleton.write(self.abi, self.contents)
        self.assertEqual(skeleton.abi_of(image), self.abi)
        self.assertEqual(skeleton.functions(image), self.contents)

    def test_readelf_reads_the_same(self):
        image = skeleton.write(self.abi, self.contents)
        header = readelf("-h", image=image)
        for text in ("ELF64", "<unknown: 33>", "EXEC", "NVIDIA CUDA", "0x5a055a", "0x80"):
            self.assertIn(text, header)
        sections = readelf("-SW", image=image)
        self.assertRegex(sections, r"\.text\._Z5firstv +PROGBITS +0+ \w+ 000180 00 +AX")
        self.assertRegex(sections, r"\.text\.second +PROGBITS +0+ \w+ 001000 00 +AX")
        symbols = readelf("-sW", image=image)
        self.assertRegex(symbols, r" 384 FUNC +GLOBAL DEFAULT +\[<other>: 10\] +4 _Z5firstv")
        self.assertRegex(symbols, r" 4096 FUNC +GLOBAL DEFAULT +5 second")

    def test_no_code_is_in_it(self):
        other = [skeleton.Function(f.name, 0, f.other) for f in self.contents]
        sizes = sum(f.size for f in self.contents)
        image, empty = skeleton.write(self.abi, self.contents), skeleton.write(self.abi, other)
        self.assertGreaterEqual(image.count(0) - empty.count(0), sizes - 16)

    def test_a_compiled_module_is_described(self):
        image = (DATA / "cubin/equal_offsets.sm_80.cubin").read_bytes()
        names = {f.name: f.other for f in skeleton.functions(image)}
        self.assertEqual(names, {"_Z10polynomialPffi": 0x10, "_Z10scale_twinPff": 0x10, "_Z8scale_upPff": 0x10})
        again = skeleton.write(skeleton.abi_of(image), skeleton.functions(image))
        self.assertEqual(skeleton.functions(again), skeleton.functions(image))
        self.assertEqual(skeleton.abi_of(again), skeleton.abi_of(image))

    def test_no_module(self):
        for image in (b"", b"\x7fELF", bytes(64), pathlib.Path("/proc/self/exe").read_bytes()):
            with self.assertRaises(ValueError):
                skeleton.functions(image)


class SessionTest(unittest.TestCase):
    session = session_file.Session(SESSION)

    def test_launches_count_loops(self):
        self.assertEqual(self.session.launches(), {"chain": 7, "opaque": 10})

    def test_weights(self):
        weights = self.session.weights()
        self.assertEqual(weights.keys(), {"chain"})
        self.assertEqual(weights["chain"][0x10, "wait"], session_file.Weight(5, 2))

    def test_a_pcs_line_is_written_as_it_was(self):
        line = next(line for line in SESSION.splitlines() if line.startswith("pcs"))
        self.assertEqual(session_file.pcs_line(*session_file.parse_pcs(line.split())), line)

    def test_a_word_that_the_recorder_does_not_write(self):
        with self.assertRaises(ValueError):
            session_file.parse_pcs(["pcs", "k1", "0x10:wait"])

    def test_replayed(self):
        again = session_file.Session(self.session.replayed(3, 0.5, "a/b", "c"))
        self.assertEqual(again.launches(), {"chain": 7 * 6, "opaque": 10 * 6})
        self.assertEqual([rate for _, rate, _ in again.threads()], [34, 2])
        self.assertEqual(again.weights(), self.session.weights())
        self.assertEqual([line.strip() for line in again.lines if "path" in line], ["path a/b", "path c"] * 2)


class PackTest(unittest.TestCase):
    def setUp(self):
        self.work = tempfile.TemporaryDirectory()
        self.addCleanup(self.work.cleanup)
        self.raw, self.packed, self.out = (pathlib.Path(self.work.name) / name for name in ("raw", "packed", "out"))
        self.raw.mkdir()
        (self.raw / "session").write_text(SESSION)
        self.images = [(DATA / f"cubin/{name}.sm_90.cubin").read_bytes() for name in ("inline_chain", "opaque")]
        for number, image in enumerate(self.images, 1):
            (self.raw / f"module-{number}.cubin").write_bytes(image)

    def test_others_code_stays_out(self):
        own = self.images[0].replace(b"/tmp/kernels", b"/some/wher")
        (self.raw / "module-1.cubin").write_bytes(own)
        session_data.pack(self.raw, self.packed, {"m1": "/some/wher"}, 0)
        self.assertEqual({file.name for file in self.packed.iterdir()}, {"session", "modules.txt", "module-1.cubin"})
        self.assertEqual((self.packed / "module-1.cubin").read_bytes(), own.replace(b"/some/wher", b"/build/src"))
        self.assertEqual((self.packed / "session").read_text(), SESSION)

        session_data.unpack(self.packed, self.out)
        self.assertEqual({file.name for file in self.out.iterdir()}, {"session", "module-1.cubin", "module-2.cubin"})
        image = (self.out / "module-2.cubin").read_bytes()
        self.assertEqual(skeleton.functions(image), [f for f in skeleton.functions(self.images[1]) if f.name == "opaque"])
        self.assertEqual(skeleton.abi_of(image), skeleton.abi_of(self.images[1]))

    def test_a_folder_of_another_length(self):
        with self.assertRaises(ValueError):
            session_data.pack(self.raw, self.packed, {"m1": "/tmp/kernels"}, 0)

    def test_the_heaviest_stay_and_sums_too(self):
        session_data.pack(self.raw, self.packed, {}, 2)
        cut = session_file.Session((self.packed / "session").read_text()).weights()["chain"]
        weight = session_file.Weight
        self.assertEqual(cut, {(0x10, "selected"): weight(9, 0), (0x10, "wait"): weight(5, 2),
                               (0, "wait"): weight(5, 3), (0, "selected"): weight(1, 0)})

    def test_sums_where_the_first_instruction_is_heavy(self):
        weight = session_file.Weight
        weights = {(0, "wait"): weight(9, 1), (16, "wait"): weight(2, 2), (32, "wait"): weight(1, 0)}
        self.assertEqual(session_data.cut(weights, 1), {(0, "wait"): weight(12, 3)})


class RepositoryTest(unittest.TestCase):
    """What is committed."""

    def test_every_module_is_there_or_described(self):
        for folder in (DATA / "sessions").iterdir():
            if not folder.is_dir():
                continue
            with tempfile.TemporaryDirectory() as out:
                session_data.unpack(folder, pathlib.Path(out))
                session = session_file.Session((folder / "session").read_text())
                lengths = {}
                for words in session.rows("module"):
                    image = (pathlib.Path(out) / session_file.option(words, "file")).read_bytes()
                    lengths.update({f.name: f.size for f in skeleton.functions(image)})
                for function, weights in session.weights().items():
                    self.assertLess(max(pc for pc, _ in weights), lengths[function], f"{folder.name}: {function}")

    def test_committed_modules_are_ours(self):
        for file in (DATA / "sessions").glob("*/*.cubin"):
            self.assertIn(b"/build/src/tests/hardware", file.read_bytes(), str(file))


if __name__ == "__main__":
    unittest.main()
