"""Which shared libraries a program needs, read out of its ELF header.

ldd(1) would run the program's loader; reading the file also works for programs
of the guest, whose libraries are not installed on the host.
"""

import functools
import os
import shutil
import struct
import subprocess

from errors import LabError

PT_LOAD, PT_DYNAMIC, PT_INTERP = 1, 2, 3
DT_NEEDED, DT_STRTAB, DT_RPATH, DT_RUNPATH = 1, 5, 15, 29
MACHINE_X86_64 = 62

STANDARD_DIRS = (
    "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu",
    "/usr/local/lib/x86_64-linux-gnu", "/usr/local/lib",
    "/lib64", "/usr/lib64", "/lib", "/usr/lib",
)


class Elf:
    """The loader's view of one 64-bit little-endian ELF file."""

    def __init__(self, data):
        self.data = data
        self.machine = struct.unpack_from("<H", data, 18)[0]
        self.interp, self.needed, self.rpath = None, [], []
        offset, = struct.unpack_from("<Q", data, 32)
        size, count = struct.unpack_from("<HH", data, 54)
        headers = [struct.unpack_from("<IIQQQQ", data, offset + i * size) for i in range(count)]
        self.loads = [h for h in headers if h[0] == PT_LOAD]
        for kind, _, start, _, _, length in headers:
            if kind == PT_INTERP:
                self.interp = data[start:start + length].rstrip(b"\0").decode()
            elif kind == PT_DYNAMIC:
                self._read_dynamic(start, length)

    def _read_dynamic(self, start, length):
        entries = list(struct.iter_unpack("<qQ", self.data[start:start + length // 16 * 16]))
        strings = next((self._file_offset(v) for tag, v in entries if tag == DT_STRTAB), 0)
        for tag, value in entries:
            if tag in (DT_NEEDED, DT_RPATH, DT_RUNPATH):
                end = self.data.index(b"\0", strings + value)
                text = self.data[strings + value:end].decode()
                if tag == DT_NEEDED:
                    self.needed.append(text)
                else:
                    self.rpath += text.split(":")

    def _file_offset(self, address):
        for _, _, offset, start, _, length in self.loads:
            if start <= address < start + length:
                return address - start + offset
        raise LabError("broken ELF file: dynamic section points outside of it")


def parse(data):
    """An Elf, or None where `data` is no ELF file (a script, a text)."""
    if data[:6] != b"\x7fELF\x02\x01":
        return None
    return Elf(data)


def host_libraries(program, skip):
    """{soname: path on the host} of all `program` needs, recursively, but for `skip`."""
    found, queue = {}, [program]
    while queue:
        path = queue.pop()
        with open(path, "rb") as file:
            elf = parse(file.read())
        if elf is None:
            continue
        if elf.machine != MACHINE_X86_64:
            raise LabError(f"{path} is not an x86-64 program; the guest is x86-64")
        for soname in elf.needed:
            if soname not in skip and soname not in found:
                found[soname] = find_library(soname, path, elf.rpath)
                queue.append(found[soname])
    return found


def find_library(soname, needed_by, rpath):
    origin = os.path.dirname(os.path.realpath(needed_by))
    dirs = [d.replace("$ORIGIN", origin).replace("${ORIGIN}", origin) for d in rpath]
    dirs += os.environ.get("LD_LIBRARY_PATH", "").split(":")
    candidates = [os.path.join(d, soname) for d in dirs if d]
    candidates += loader_cache().get(soname, [])
    candidates += [os.path.join(d, soname) for d in STANDARD_DIRS]
    for path in candidates:
        if os.path.isfile(path):
            return path
    raise LabError(f"{needed_by} needs {soname}, which is not on this host: "
                   f"install its package, or set LD_LIBRARY_PATH")


@functools.lru_cache(maxsize=None)
def loader_cache():
    """{soname: paths} as ld.so knows them (/etc/ld.so.cache)."""
    ldconfig = shutil.which("ldconfig", path=os.environ.get("PATH", "") + ":/sbin:/usr/sbin")
    cache = {}
    if ldconfig:
        listing = subprocess.run([ldconfig, "-p"], capture_output=True, text=True).stdout
        for line in listing.splitlines():
            if "=>" in line and "x86-64" in line:
                name, path = line.split("=>")
                cache.setdefault(name.split()[0], []).append(path.strip())
    return cache
