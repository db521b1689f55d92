"""What a guest is to run: a script, its environment, programs and files; as a cpio archive."""

import os
import re
import shlex
import stat
import time

import elf
from cpio import CpioWriter, guest_path
from errors import LabError
from image import LIBRARY_DIR

BIN_DIR = "/usr/local/bin"
FILE_DIR = "/root"


class Payload:
    """Programs, files and environment of a run; the same for both machines of a pair."""

    def __init__(self, image, binaries, files, environment, host_libraries=False, modules=()):
        self.sources = {}
        # The image's own libraries are one set that fits together, so a host's
        # copy of the same name is left out, unless it is asked for.
        skip = set() if host_libraries else image.libraries
        for spec in binaries:
            source, target = split_spec(spec, BIN_DIR)
            self._add(target, source, 0o755)
            self._add_libraries(source, skip)
        for spec in files:
            source, target = split_spec(spec, FILE_DIR)
            self._add_tree(target, source)
        for source, target in modules:
            self._add(target, source, 0o644)
        self.environment = "".join(export_line(item) for item in environment)

    def size(self):
        return sum(os.path.getsize(source) for source, _ in self.sources.values())

    def write(self, out, script, token):
        """The archive for one machine, to the binary file object `out`."""
        archive = CpioWriter(out)
        for target, (source, mode) in sorted(self.sources.items()):
            with open(source, "rb") as file:
                archive.file(target, file.read(), mode)
        archive.file("lab/job/main", script)
        archive.file("lab/job/env", self.environment.encode())
        archive.file("lab/job/token", token.encode() + b"\n")
        archive.file("lab/job/date", b"%d\n" % time.time())
        archive.close()

    def _add(self, target, source, mode):
        path = guest_path(target)
        if path.startswith(("dev/", "proc/", "sys/", "share/", "lab/")):
            raise LabError(f"/{path} is the guest's own place: choose another path for {source}")
        self.sources[path] = (source, mode)

    def _add_tree(self, target, source):
        if not os.path.isdir(source):
            self._add(target, source, stat.S_IMODE(os.stat(source).st_mode))
            return
        for directory, _, names in os.walk(source):
            for name in names:
                path = os.path.join(directory, name)
                if os.path.isfile(path):
                    self._add_tree(os.path.join(target, os.path.relpath(path, source)), path)

    def _add_libraries(self, program, skip):
        for soname, path in elf.host_libraries(program, skip).items():
            self._add(os.path.join(LIBRARY_DIR, soname), path, 0o755)
            directory = os.path.dirname(path)
            if soname.startswith("libibverbs.so"):
                self._add_providers(os.path.join(directory, "libibverbs"), skip)
            elif soname == "libc.so.6":
                # glibc's libraries only work together with those of the same build.
                for other in ("ld-linux-x86-64.so.2", "libm.so.6", "libresolv.so.2"):
                    self._add(os.path.join(LIBRARY_DIR, other), os.path.join(directory, other), 0o755)

    def _add_providers(self, directory, skip):
        """libibverbs opens its providers by name, so no DT_NEEDED leads to them."""
        providers = os.listdir(directory) if os.path.isdir(directory) else []
        rxe = [name for name in providers if name.startswith("librxe")]
        if not rxe:
            raise LabError(f"no Soft-RoCE provider in {directory}: apt-get install ibverbs-providers, "
                           f"or leave --host-libs out")
        for name in rxe:
            path = os.path.join(directory, name)
            self._add(os.path.join(LIBRARY_DIR, "libibverbs", name), path, 0o644)
            self._add_libraries(path, skip | {"libibverbs.so.1"})


def split_spec(spec, default_dir):
    """(path on the host, path in the guest) of a HOST[:GUEST] argument."""
    source, colon, target = spec.rpartition(":")
    if not colon or not target.startswith("/"):
        source, target = spec, os.path.join(default_dir, os.path.basename(spec.rstrip("/")))
    if not os.path.exists(source):
        raise LabError(f"no such file: {source}")
    return source, target


def export_line(item):
    name, equals, value = item.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise LabError(f"-e wants NAME=VALUE, not {item!r}")
    return f"export {name}={shlex.quote(value)}\n"
