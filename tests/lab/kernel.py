"""The guest's kernel: its modules in loading order, and a form of it that boots fast."""

import lzma
import os
import re
import struct

from errors import LabError

# What the lab loads itself. Dependencies are read out of the modules.
# rdma_rxe asks for crc32 by its crypto name, which no `depends=` tells.
BOOT = {
    "rdma": ("crc32_generic", "rdma_rxe", "rdma_ucm", "ib_uverbs", "dummy"),
    # What siw needs; the module itself is not Debian's (see siw.py).
    "siw": ("crc32c_generic", "libcrc32c", "iw_cm"),
    "wire": ("virtio_pci", "virtio_net"),
    "share": ("virtio_pci", "9pnet_virtio", "9p"),
    "snapshot": ("virtio_pci", "virtio_blk"),
}
# Loaded by tests with `labmod`.
EXTRA = ("sch_netem", "sch_tbf", "sch_prio", "sch_fq", "veth", "bridge", "tun")
# Not in every kernel, and not needed by every kernel.
OPTIONAL = {"crc32_generic", "crc32c_generic"}


class Modules:
    """The kernel package's modules: name -> tar member, and what each one depends on."""

    def __init__(self, tar):
        self.tar = tar
        self.members = {}
        self.built_in = set()
        for member in tar:
            base = os.path.basename(member.name)
            if base.endswith(".ko"):
                self.members[module_name(base[:-3])] = member
            elif base == "modules.builtin":
                lines = tar.extractfile(member).read().decode().split()
                self.built_in = {module_name(os.path.basename(line)[:-3]) for line in lines}
        self.loaded = {}

    def order(self, names):
        """`names` and all they depend on, each after its dependencies."""
        ordered = []
        for name in names:
            self._visit(module_name(name), ordered)
        return ordered

    def _visit(self, name, ordered):
        if name in ordered or name in self.built_in:
            return
        if name not in self.members:
            if name in OPTIONAL or name in EXTRA:
                return
            raise LabError(f"the kernel package has no module {name}: it cannot run the lab")
        for dependency in self.depends(name):
            self._visit(dependency, ordered)
        ordered.append(name)

    def depends(self, name):
        match = re.search(rb"\0depends=([^\0]*)\0", self.data(name))
        return [module_name(d) for d in match[1].decode().split(",") if d] if match else []

    def data(self, name):
        if name not in self.loaded:
            self.loaded[name] = self.tar.extractfile(self.members[name]).read()
        return self.loaded[name]


def module_name(name):
    return name.replace("-", "_")


def boot_image(bzimage):
    """The ELF kernel inside `bzimage`, or `bzimage` itself where that cannot be had.

    QEMU enters the ELF by its PVH note, so the guest has nothing to decompress:
    that saves 2.7 s under TCG.
    """
    setup_sectors = bzimage[0x1F1] or 4
    offset, length = struct.unpack_from("<II", bzimage, 0x248)
    payload = bzimage[(setup_sectors + 1) * 512 + offset:][:length]
    if payload[:6] == b"\xfd7zXZ\0":
        # A decompressor object, since 4 bytes with the size follow the stream.
        return lzma.LZMADecompressor().decompress(payload)
    return bzimage
