# SPDX-License-Identifier: Apache-2.0
"""steps.py finds a broken step, by its line, and runs one that is not."""
import json
import pathlib
import subprocess
import sys
import tempfile

STEPS = pathlib.Path(__file__).with_name("steps.py")
GOOD = """# a comment
ARG BASE=elsewhere
FROM ${BASE} AS build
RUN made here
FROM scratch AS last
COPY --from=build /made \\
  /bin/
# another comment
COPY kept/ /etc/
ENV PATH=/bin TERM=dumb
WORKDIR /work
ENTRYPOINT ["/bin/made"]
CMD ["--help"]
"""


def run(folder, text):
    (folder / "Dockerfile").write_text(text)
    return subprocess.run([sys.executable, "-B", STEPS, folder / "Dockerfile", "--context", folder / "context", "--out", folder / "out",
                           "--base", "/", "--run", 'echo made >"$STAGE/made"'], capture_output=True, text=True, check=False)


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "context/kept").mkdir(parents=True)
        (folder / "context/kept/file").write_text("kept")
        done = run(folder, GOOD)
        assert done.returncode == 0, done.stdout + done.stderr
        last = folder / "out/last"
        found = sorted(path.relative_to(last).as_posix() for path in last.rglob("*"))
        assert found == ["bin", "bin/made", "etc", "etc/file", "work"], found
        settings = json.loads((folder / "out/images.json").read_text())["last"]
        assert settings == {"environment": {"PATH": "/bin", "TERM": "dumb"}, "directory": "/work", "entrypoint": ["/bin/made"],
                            "command": ["--help"]}, settings
        for change, line in ((("/made \\", "/unmade \\"), 6), (("kept/ /etc", "lost/ /etc"), 9), (("WORKDIR", "WORKDIIR"), 11),
                             (("--from=build", "--from=built"), 6), (('["--help"]', "--help"), 13)):
            done = run(folder, GOOD.replace(*change))
            assert done.returncode == 1 and f"Dockerfile:{line}: FAILED" in done.stdout, (change, done.stdout, done.stderr)
    print("a broken step is found by its line")
    return 0


if __name__ == "__main__":
    sys.exit(main())
