"""siw, the kernel's software iWARP device. Debian's kernel comes without its module, so it is built here.

From Debian's own packages of the very version of the image's kernel, once, as
an ordinary user. The result lies in the cache beside the images and is named
by that version. The packages (155 MB) are not kept.
"""

import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time

import host
import image as base_image
import packages
from errors import LabError

BUILD_TOOLS = {"make": "make", "ld": "binutils", "strip": "binutils", "xz": "xz-utils"}
# What the kernel's own headers lack.
SOURCES = ("drivers/infiniband/sw/siw/", "include/uapi/rdma/")
DRIVER = SOURCES[0]
# A run in the guest finds the module here.
GUEST_PATH = "/lib/modules/siw.ko"


def module(cache, image, install=False):
    """The path of the module that fits the image's kernel; built first where it is missing."""
    path = os.path.join(cache, f"siw-{image.kernel_package}_{image.kernel_version}.ko")
    if not os.path.exists(path):
        host.require(BUILD_TOOLS, install)
        with base_image.lock(cache):
            # Another builder may have made it while this one waited.
            if not os.path.exists(path):
                build(cache, image, path)
    return path


def build(cache, image, path):
    started = time.monotonic()
    host.say("building the module siw (once; 155 MB of packages, about 30 s)")
    with tempfile.TemporaryDirectory(dir=cache, prefix="building-siw-") as directory:
        debs = fetch(image, directory)
        source = debs.pop(source_package(image))
        for deb in debs.values():
            run(["dpkg-deb", "-x", deb, directory])
        headers = os.path.join(directory, "usr/src", headers_package(image))
        driver = os.path.join(directory, "siw")
        unpack(source, directory, driver)
        move(headers, directory)
        # The compiler that the kernel was built with may be known by its plain name only.
        compiler = [] if shutil.which(named_compiler(headers)) else ["CC=cc"]
        run(["make", "-s", "-C", headers, f"M={driver}", "CONFIG_RDMA_SIW=m", *compiler, "modules"])
        built = os.path.join(driver, "siw.ko")
        run(["strip", "--strip-debug", built])
        os.replace(built, path)
    host.say(f"siw is ready after {time.monotonic() - started:.1f} s: {path}")


def fetch(image, directory):
    """{package: path}, of the kernel's version and no other."""
    version = image.kernel_version
    asked = [headers_package(image), source_package(image), *closure(headers_package(image))]
    debs = packages.download(asked, directory)
    for name, path in debs.items():
        # The compiler's package has the compiler's version in its name, and the kernel's all the same.
        if f"_{version}_" not in os.path.basename(path):
            raise LabError(f"the archive has {os.path.basename(path)}, and the image a kernel {version}: "
                           f"`lab build --rebuild` makes one of today's packages")
    return debs


def closure(package):
    """What of the kernel's own packages `package` needs; the rest is libraries that the host has."""
    lines = packages.apt_cache("depends", "--recurse", "--no-recommends", "--no-suggests", "--no-conflicts",
                               "--no-breaks", "--no-replaces", "--no-enhances", package)
    return sorted({line for line in lines if line.startswith("linux-")} - {package})


def headers_package(image):
    return image.kernel_package.replace("linux-image-", "linux-headers-")


def source_package(image):
    return "linux-source-" + re.match(r"linux-image-(\d+\.\d+)", image.kernel_package)[1]


def unpack(deb, directory, driver):
    """The driver's files to `driver`, with the headers that only it uses beside them."""
    os.makedirs(driver)
    with packages.opened(deb) as tar:
        inner = next(m for m in tar.getmembers() if m.name.endswith(".tar.xz"))
        archive = os.path.join(directory, "source.tar.xz")
        with open(archive, "wb") as file:
            shutil.copyfileobj(tar.extractfile(inner), file)
    # xz itself decompresses several times as fast as Python.
    with subprocess.Popen(["xz", "-dc", archive], stdout=subprocess.PIPE) as xz:
        with tarfile.open(fileobj=xz.stdout, mode="r|") as tar:
            for member in tar:
                path = member.name.split("/", 1)[-1]
                if member.isfile() and path.startswith(SOURCES):
                    target = path[len(DRIVER):] if path.startswith(DRIVER) else path
                    target = os.path.join(driver, target)
                    os.makedirs(os.path.dirname(target), exist_ok=True)
                    with open(target, "wb") as file:
                        shutil.copyfileobj(tar.extractfile(member), file)
    if xz.returncode or not os.path.exists(os.path.join(driver, "Makefile")):
        raise LabError(f"{os.path.basename(deb)} has no source of siw, or is damaged: try again")


def move(headers, root):
    """The headers name each other by absolute paths: leads these into `root`."""
    makefile = os.path.join(headers, "Makefile")
    with open(makefile) as file:
        text = file.read()
    with open(makefile, "w") as file:
        file.write(text.replace("/usr/", f"{root}/usr/"))


def named_compiler(headers):
    with open(os.path.join(headers, ".kernelvariables")) as file:
        match = re.search(r"gcc-\d+", file.read())
    return match[0] if match else "cc"


def run(command):
    result = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if result.returncode:
        end = "\n  ".join((result.stdout + result.stderr).strip().splitlines()[-10:])
        raise LabError(f"siw cannot be built, {command[0]} failed:\n  {end}")
