"""The host: which tools it has, what to install where one is missing, how to run them."""

import os
import re
import shutil
import subprocess
import sys

from errors import LabError

QEMU = "qemu-system-x86_64"

# tool -> Debian package that has it
BUILD_TOOLS = {"apt-get": "apt", "apt-cache": "apt", "dpkg-deb": "dpkg"}
RUN_TOOLS = {QEMU: "qemu-system-x86"}

# `-netdev dgram`, which joins two guests, came with this one.
QEMU_FOR_PAIR = (7, 2)


def say(text):
    print(f"lab: {text}", file=sys.stderr, flush=True)


def require(tools, install=False):
    """Makes sure `tools` are there; installs their packages only when told to."""
    missing = sorted({package for tool, package in tools.items() if not shutil.which(tool)})
    if not missing:
        return
    command = "apt-get update && apt-get install -y --no-install-recommends " + " ".join(missing)
    if not install:
        raise LabError(f"missing: {' '.join(missing)}. Install with: {command}   (or add --install)")
    apt_get("update")
    apt_get("install", "-y", "--no-install-recommends", *missing)


def apt_get(*arguments):
    """Runs apt-get as root; its output goes to stderr."""
    if os.geteuid() != 0:
        raise LabError("--install needs root: run it with sudo, or leave it out and install by hand")
    say("apt-get " + " ".join(arguments))
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    result = subprocess.run(["apt-get", "-q", *arguments], stdin=subprocess.DEVNULL,
                            stdout=sys.stderr, env=env)
    if result.returncode:
        raise LabError(f"apt-get {arguments[0]} failed with status {result.returncode} (see above)")


def output_of(command, hint, **options):
    """The command's stdout; a failure becomes a LabError with its stderr and `hint`."""
    # C locale: apt's answers are parsed.
    env = {**os.environ, "LC_ALL": "C"}
    result = subprocess.run(command, capture_output=True, text=True, env=env, **options)
    if result.returncode:
        raise LabError(f"{command[0]} failed: {result.stderr.strip() or result.returncode}\n  {hint}")
    return result.stdout


def qemu_version():
    """(major, minor), or None where QEMU is not installed."""
    if not shutil.which(QEMU):
        return None
    match = re.search(r"version (\d+)\.(\d+)", output_of([QEMU, "--version"], ""))
    return (int(match[1]), int(match[2])) if match else (0, 0)
