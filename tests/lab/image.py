"""The base image: a kernel and an initramfs, made once from Debian packages into the cache.

1. An image is complete or absent: it is built beside and renamed into place.
2. An image's name is a hash of its recipe, so an edit of these files, or
   another Debian release, makes another image and disturbs no running guest.
3. Builders exclude each other by a lock on the cache.
"""

import contextlib
import fcntl
import glob
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time

import elf
import host
import kernel
import packages
from cpio import CpioWriter, guest_path
from errors import LabError

HERE = os.path.dirname(os.path.abspath(__file__))
RECIPE = ("cpio.py", "elf.py", "image.py", "kernel.py", "packages.py", "guest/*")
LIBRARY_DIR = "usr/lib/x86_64-linux-gnu"
BIN_DIRS = ("usr/bin", "usr/sbin")
KEEP_IMAGES = 2

# Debian's busybox sh runs its own applets (`ip`, ...) before it looks at PATH.
NOT_FROM_BUSYBOX = {"sh", "ash", "busybox"}


class Image:
    """A finished image's files."""

    def __init__(self, directory):
        self.directory = directory
        self.kernel = os.path.join(directory, "kernel")
        self.initramfs = os.path.join(directory, "base.cpio")
        with open(os.path.join(directory, "image.json")) as file:
            facts = json.load(file)
        self.libraries = set(facts["libraries"])
        self.kernel_package = facts["kernel"]
        self.kernel_version = facts["kernel_version"]


def default_cache():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.environ.get("RPC_LAB_CACHE") or os.path.join(base, "rpc-lab")


def present(cache):
    """The Image of this recipe, or None where it is not built yet."""
    directory = directory_in(cache)
    return Image(directory) if os.path.isdir(directory) else None


def get(cache, install=False, rebuild=False):
    """The Image, built first where it is missing (or `rebuild` says so)."""
    image = present(cache)
    if image and not rebuild:
        return image
    host.require(host.BUILD_TOOLS, install)
    with lock(cache):
        # Another builder may have made it while this one waited.
        image = None if rebuild else present(cache)
        return image or build(cache, install)


def directory_in(cache):
    digest = hashlib.sha256()
    files = [path for pattern in RECIPE for path in sorted(glob.glob(os.path.join(HERE, pattern)))]
    for path in [*files, "/etc/os-release"]:
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            digest.update(file.read() + b"\0")
    return os.path.join(cache, "image-" + digest.hexdigest()[:16])


@contextlib.contextmanager
def lock(cache):
    try:
        os.makedirs(cache, exist_ok=True)
        file = open(os.path.join(cache, "lock"), "w")
    except OSError as error:
        raise LabError(f"cannot write the cache: {error}. Choose another with --cache DIR") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            host.say("waiting for another build in the same cache")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build(cache, install):
    started = time.monotonic()
    host.say(f"building the guest image in {cache} (once; about 10 s and 90 MB of packages)")
    kernel_package, debs = fetch(cache, install)
    final = directory_in(cache)
    temporary = tempfile.mkdtemp(dir=cache, prefix="building-")
    try:
        write_image(temporary, kernel_package, debs)
        os.chmod(temporary, 0o755)
        shutil.rmtree(final, ignore_errors=True)
        os.rename(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    prune(cache, debs.values())
    host.say(f"image ready after {time.monotonic() - started:.1f} s: {final}")
    return Image(final)


def fetch(cache, install):
    """(kernel package, {package: path}); `install` allows to refresh apt's lists where they are to blame."""
    try:
        kernel_package, others = packages.select()
        return kernel_package, packages.download([kernel_package, *others], os.path.join(cache, "debs"))
    except LabError:
        if not install:
            raise
        host.apt_get("update")
        return fetch(cache, install=False)


def prune(cache, used_debs):
    """Drops what no build needs any more: superseded packages, old images, wrecks."""
    for deb in set(glob.glob(os.path.join(cache, "debs", "*"))) - set(used_debs):
        shutil.rmtree(deb) if os.path.isdir(deb) else os.remove(deb)
    images = sorted(glob.glob(os.path.join(cache, "image-*")), key=os.path.getmtime)
    for directory in images[:-KEEP_IMAGES] + glob.glob(os.path.join(cache, "building-*")):
        shutil.rmtree(directory, ignore_errors=True)


def write_image(directory, kernel_package, debs):
    files = userland({name: deb for name, deb in debs.items() if name != kernel_package})
    with packages.opened(debs[kernel_package]) as tar:
        bzimage = next(m for m in tar.getmembers() if m.name.startswith("./boot/vmlinuz-"))
        with open(os.path.join(directory, "kernel"), "wb") as file:
            file.write(kernel.boot_image(tar.extractfile(bzimage).read()))
        with open(os.path.join(directory, "base.cpio"), "wb") as file:
            # Not compressed: the guest would pay for the decompression.
            write_initramfs(CpioWriter(file), files, kernel.Modules(tar))
    libraries = [os.path.basename(path) for path in files if os.path.dirname(path) == LIBRARY_DIR]
    with open(os.path.join(directory, "image.json"), "w") as file:
        version = os.path.basename(debs[kernel_package]).split("_")[1]
        json.dump({"kernel": kernel_package, "kernel_version": version, "libraries": sorted(libraries),
                   "packages": sorted(map(os.path.basename, debs.values()))}, file, indent=1)


def userland(debs):
    """{guest path: (mode, data or link target)}: programs, and exactly the libraries they need."""
    available, wanted = {}, []
    for name, deb in debs.items():
        with packages.opened(deb) as tar:
            for member in tar:
                path = guest_path(member.name)
                if member.issym():
                    available[path] = (stat.S_IFLNK, member.linkname)
                elif member.isfile():
                    available[path] = (stat.S_IFREG | member.mode, tar.extractfile(member).read())
                else:
                    continue
                if is_wanted(name, path):
                    wanted.append(path)
    # Debian's dash package makes this link in its postinst script.
    available["usr/bin/sh"] = (stat.S_IFLNK, "dash")
    return with_libraries(available, wanted + ["usr/bin/sh"])


def is_wanted(package, path):
    if package in packages.PROGRAMS:
        return os.path.dirname(path) in BIN_DIRS
    if package in packages.LIBRARIES and package != "ibverbs-providers":
        return os.path.dirname(path) == LIBRARY_DIR
    # The loader is named by absolute path. Of the providers, those of the software devices.
    return ("ld-linux" in path or "/libibverbs/librxe" in path or "/libibverbs/libsiw" in path
            or path in ("etc/libibverbs.d/rxe.driver", "etc/libibverbs.d/siw.driver", "etc/iproute2/rt_tables"))


def with_libraries(available, wanted):
    chosen = {}
    while wanted:
        path = wanted.pop()
        if path in chosen or path.startswith("dev/"):
            continue
        if path not in available:
            raise LabError(f"no package of the image has {path}: add it to packages.py")
        mode, content = chosen[path] = available[path]
        if stat.S_ISLNK(mode):
            wanted.append(guest_path(os.path.join("/", os.path.dirname(path), content)))
        elif (program := elf.parse(content)) is not None:
            wanted += [os.path.join(LIBRARY_DIR, soname) for soname in program.needed]
    return chosen


def write_initramfs(out, files, modules):
    out.merged_usr()
    for directory in ("proc", "sys", "dev", "tmp", "run", "root", "share", "var", "lab/job"):
        out.dir(directory)
    out.char_device("dev/console", 5, 1)
    for path, (mode, content) in sorted(files.items()):
        if stat.S_ISLNK(mode):
            out.symlink(path, content)
        else:
            out.file(path, content, stat.S_IMODE(mode))
    for applet in sorted(busybox_applets(files["usr/bin/busybox"][1])):
        if not any(f"{directory}/{applet}" in files for directory in BIN_DIRS):
            out.symlink(f"usr/bin/{applet}", "busybox")
    write_modules(out, modules)
    for path in sorted(glob.glob(os.path.join(HERE, "guest", "*"))):
        name = os.path.basename(path)
        target = "init" if name == "init" else f"usr/bin/{name}"
        with open(path, "rb") as file:
            out.file(target, file.read(), 0o755)
    out.file("etc/passwd", b"root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n")
    out.file("etc/group", b"root:x:0:\nuser:x:1000:\n")
    out.file("etc/hosts", b"127.0.0.1 localhost\n::1 localhost\n10.9.0.1 a\n10.9.0.2 b\n")
    out.close()


def busybox_applets(program):
    """Asks the program itself, under the one name by which it does not act as an applet."""
    with tempfile.TemporaryDirectory(prefix="lab-") as directory:
        path = os.path.join(directory, "busybox")
        with open(path, "wb") as file:
            file.write(program)
        os.chmod(path, 0o700)
        return set(host.output_of([path, "--list"], "is this an x86-64 host?").split()) - NOT_FROM_BUSYBOX


def write_modules(out, modules):
    """Each module as /lib/modules/NAME.ko; boot-* and modules.dep say in which order to load."""
    names = set()
    for feature, wanted in kernel.BOOT.items():
        order = modules.order(wanted)
        out.file(f"lib/modules/boot-{feature}", "\n".join(order).encode() + b"\n")
        names.update(order)
    names.update(modules.order(kernel.EXTRA))
    lines = []
    for name in sorted(names):
        out.file(f"lib/modules/{name}.ko", modules.data(name))
        lines.append(" ".join([name, *modules.order([name])]))
    out.file("lib/modules/modules.dep", "\n".join(lines).encode() + b"\n")
