"""Writes newc cpio archives, the format of a Linux initramfs.

Written here, and not by cpio(1), because a device node in the archive would
otherwise need root (mknod) on the host.
"""

import os
import stat

# Debian's merged /usr: the image has these as symlinks. A directory entry of
# the same name in a later archive would make the kernel replace the symlink.
MERGED_USR = ("bin", "sbin", "lib", "lib64")

# The kernel applies the mode of every directory entry, also to one that
# exists, so an appended archive has to repeat the modes that are not 0755.
DIR_MODES = {"tmp": 0o1777, "root": 0o700}


def guest_path(path):
    """`path` relative to the guest's root, as it is after following /lib -> /usr/lib."""
    path = os.path.normpath("/" + str(path)).lstrip("/")
    if path.split("/", 1)[0] in MERGED_USR:
        path = "usr/" + path
    return path


class CpioWriter:
    """Appends entries to a binary file object; parent directories come by themselves."""

    def __init__(self, out):
        self.out = out
        self.inode = 0
        self.dirs = set()

    def dir(self, path):
        path = guest_path(path)
        if path and path not in self.dirs:
            self.dir(os.path.dirname(path))
            self.dirs.add(path)
            self._entry(path, stat.S_IFDIR | DIR_MODES.get(path, 0o755), b"")

    def file(self, path, data, mode=0o644):
        self._leaf(path, stat.S_IFREG | mode, data)

    def symlink(self, path, target):
        self._leaf(path, stat.S_IFLNK | 0o777, target.encode())

    def char_device(self, path, major, minor):
        self._leaf(path, stat.S_IFCHR | 0o600, b"", (major, minor))

    def merged_usr(self):
        """The /bin -> usr/bin symlinks; they bypass guest_path, which maps them away."""
        for name in MERGED_USR:
            self.dir("usr/" + name)
            self._entry(name, stat.S_IFLNK | 0o777, f"usr/{name}".encode())

    def close(self):
        """Ends the archive, padded so that another one (or a disk's end) may follow."""
        self._entry("TRAILER!!!", 0, b"")
        self.out.write(bytes(-self.out.tell() % 512))

    def _leaf(self, path, mode, data, device=(0, 0)):
        path = guest_path(path)
        self.dir(os.path.dirname(path))
        self._entry(path, mode, data, device)

    def _entry(self, path, mode, data, device=(0, 0)):
        self.inode += 1
        name = path.encode() + b"\0"
        # magic, then 13 fields: ino mode uid gid nlink mtime filesize,
        # device of the file (2), device it is (2), namesize, check.
        fields = (self.inode, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name), 0)
        header = b"070701" + b"".join(b"%08x" % field for field in fields)
        self.out.write(header + name + bytes(-(len(header) + len(name)) % 4))
        self.out.write(data)
        self.out.write(bytes(-len(data) % 4))
