"""Debian packages: which ones, downloaded into the cache without root, read without unpacking.

A package is in the cache whole or not at all: it is downloaded beside and
renamed into place after its SHA-256 was checked.
"""

import contextlib
import hashlib
import os
import shlex
import subprocess
import tarfile
import tempfile

import host
from errors import LabError

# What the guest has; every program in their bin directories is taken.
PROGRAMS = ("busybox-static", "dash", "iproute2", "strace",
            "ibverbs-utils", "rdmacm-utils", "perftest")
# Opened by name at run time, so no program's dependencies lead to them.
LIBRARIES = ("ibverbs-providers", "libgcc-s1", "libstdc++6", "zlib1g")
KERNEL = "linux-image-amd64"

STALE = "if the package lists are missing or old, run: apt-get update   (or add --install)"


def select():
    """(kernel package, other packages), closed over their library dependencies."""
    kernel = [line.split()[1] for line in apt_cache("depends", KERNEL)
              if line.strip().startswith("Depends: linux-image-")]
    if not kernel:
        raise LabError(f"apt knows no kernel under {KERNEL}: the lab needs Debian's package archive\n  {STALE}")
    only_depends = [f"--no-{kind}" for kind in
                    ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")]
    closure = apt_cache("depends", "--recurse", *only_depends, *PROGRAMS, *LIBRARIES)
    # A line without indent is a package; "<name>" is virtual, ":" another architecture.
    names = {line for line in closure if line[:1].isalnum() and ":" not in line}
    wanted = {name for name in names if name.startswith("lib")} | set(PROGRAMS) | set(LIBRARIES)
    return kernel[0], sorted(wanted)


def apt_cache(*arguments):
    return host.output_of(["apt-cache", *arguments], STALE).splitlines()


def download(names, directory):
    """{package: path of its .deb}; fetches only those `directory` has not got intact."""
    os.makedirs(directory, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix="partial-") as partial:
        # --print-uris looks at the working directory too, so ask in an empty one.
        listing = host.output_of(["apt-get", "download", "--print-uris", *names], STALE, cwd=partial)
        wanted = {}
        for line in listing.splitlines():
            _, file_name, _, checksum = shlex.split(line)
            wanted[file_name.split("_")[0]] = (file_name, checksum.split(":")[-1])
        missing = [name for name, (file_name, checksum) in wanted.items()
                   if not intact(os.path.join(directory, file_name), checksum)]
        if missing:
            # Sandbox: else apt warns that its _apt user cannot write here.
            host.output_of(["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", *missing],
                           STALE, cwd=partial)
        for name in missing:
            file_name, checksum = wanted[name]
            path = os.path.join(partial, file_name)
            if not intact(path, checksum):
                raise LabError(f"the download of {name} is incomplete or damaged: try again")
            os.rename(path, os.path.join(directory, file_name))
    return {name: os.path.join(directory, file_name) for name, (file_name, _) in wanted.items()}


def intact(path, checksum):
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest() == checksum
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def opened(deb):
    """The package's files, as a seekable TarFile."""
    with tempfile.TemporaryFile() as plain:
        if subprocess.run(["dpkg-deb", "--fsys-tarfile", deb], stdout=plain).returncode:
            raise LabError(f"dpkg-deb cannot read {deb}: delete it and build again")
        plain.seek(0)
        with tarfile.open(fileobj=plain, mode="r:") as tar:
            yield tar
