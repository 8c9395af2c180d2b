# SPDX-License-Identifier: Apache-2.0
"""Runs a Dockerfile's steps without an engine: each stage in a folder of its own, RUN in a chroot.

usage: steps.py DOCKERFILE --context FOLDER --out FOLDER --base FOLDER [--run HOST_COMMAND] [--image NAME=FOLDER]...
(root). --base: the root file system of whatever image is no stage, scratch or --image. --run: instead of each RUN,
a command here, with the stage's folder in $STAGE and nothing of its base in it. Instructions that are not known here
are an error.

Leaves a folder a stage, and in images.json what each is started with."""

import argparse
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

CERTIFICATES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


def instructions(text):
    """(line, word, rest) of each instruction; continuation lines joined, comments left out."""
    found, whole, first = [], "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or not line.strip():
            continue
        first = first if whole else number
        whole += line.rstrip()
        if whole.endswith("\\"):
            whole = whole[:-1]
            continue
        word, _, rest = whole.strip().partition(" ")
        found.append((first, word.upper(), rest.strip()))
        whole = ""
    return found


class Stage:
    def __init__(self, folder, inherited=None):
        self.folder = folder
        self.settings = dict(inherited or {"environment": {}, "directory": "/", "entrypoint": [], "command": []})


class Build:
    """The stages of one Dockerfile."""

    def __init__(self, options):
        self.options = options
        self.arguments = {}
        self.stages = {}
        self.images = dict(pair.split("=", 1) for pair in options.image)
        self.current = None

    def value(self, text):
        return re.sub(r"\$\{(\w+)\}", lambda found: self.arguments.get(found.group(1), ""), text)

    def do(self, word, rest):
        step = getattr(self, "do_" + word.lower(), None)
        if step is None:
            raise ValueError(f"unknown instruction {word}")
        step(self.value(rest))

    def do_arg(self, rest):
        name, _, default = rest.partition("=")
        self.arguments.setdefault(name, default)

    def do_from(self, rest):
        image, *name = re.split(r"\s+AS\s+", rest, flags=re.IGNORECASE)
        self.current = Stage(pathlib.Path(self.options.out) / (name[0] if name else "last"))
        if self.current.folder.exists():
            shutil.rmtree(self.current.folder)
        self.current.folder.parent.mkdir(parents=True, exist_ok=True)
        if image == "scratch" or (self.options.run and image not in {**self.stages, **self.images}):
            self.current.folder.mkdir()
        else:
            source = self.stages[image].folder if image in self.stages else self.images.get(image, self.options.base)
            subprocess.run(["cp", "-a", "--reflink=auto", str(source), str(self.current.folder)], check=True)
        self.stages[name[0] if name else "last"] = self.current

    def do_copy(self, rest):
        words = shlex.split(rest)
        source = pathlib.Path(self.options.context)
        if words[0].startswith("--from="):
            source = self.stages[words.pop(0)[7:]].folder
        *names, target = words
        place = self.current.folder / target.lstrip("/")
        for name in names:
            path = source / name.strip("/")
            if path.is_dir():  # what is in it, as COPY does
                place.mkdir(parents=True, exist_ok=True)
                subprocess.run(["cp", "-a", f"{path}/.", str(place)], check=True)
            elif path.exists():
                inside = place / path.name if target.endswith("/") else place
                inside.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, inside)
            else:
                raise ValueError(f"COPY: {name} is not there")

    def do_run(self, rest):
        folder = self.current.folder
        if self.options.run:
            subprocess.run(self.options.run, shell=True, check=True, env={**os.environ, "STAGE": str(folder)})
            return
        script = (f"mount --bind {folder} {folder}; mount -t proc proc {folder}/proc; mount --rbind /dev {folder}/dev; "
                  f"mount --bind -o ro /etc/resolv.conf {folder}/etc/resolv.conf; exec chroot {folder} /bin/sh -c \"$1\"")
        (folder / "etc/resolv.conf").touch()
        environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root",
                       **self.of_this_machine(), **self.current.settings["environment"]}
        subprocess.run(["unshare", "--mount", "--pid", "--fork", "--propagation", "private", "/bin/sh", "-ec", script, "sh", rest],
                       check=True, env=environment)

    def of_this_machine(self):
        """What a build behind a proxy is given: the proxy, and the certificates that this machine trusts."""
        given = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        for name in CERTIFICATES:
            if os.path.isfile(os.environ.get(name, "")):
                shutil.copy(os.environ[name], self.current.folder / "run/certificates-of-the-machine.pem")
                given[name] = "/run/certificates-of-the-machine.pem"
        return given

    def do_env(self, rest):
        pairs = dict(word.split("=", 1) for word in shlex.split(rest))
        self.current.settings["environment"] = {**self.current.settings["environment"], **pairs}

    def do_workdir(self, rest):
        self.current.settings["directory"] = rest
        (self.current.folder / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def do_entrypoint(self, rest):
        self.current.settings["entrypoint"] = json.loads(rest)

    def do_cmd(self, rest):
        self.current.settings["command"] = json.loads(rest)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dockerfile")
    for name in ("context", "out", "base"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--run")
    parser.add_argument("--image", action="append", default=[])
    options = parser.parse_args()
    build = Build(options)
    for number, word, rest in instructions(pathlib.Path(options.dockerfile).read_text()):
        print(f"{options.dockerfile}:{number}: {word} {rest}", flush=True)
        try:
            build.do(word, rest)
        except (ValueError, OSError, KeyError, subprocess.CalledProcessError) as error:
            print(f"{options.dockerfile}:{number}: FAILED: {error}")
            return 1
    started = {name: stage.settings for name, stage in build.stages.items()}
    (pathlib.Path(options.out) / "images.json").write_text(json.dumps(started, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
