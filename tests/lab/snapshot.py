"""A saved ready guest: booted once, resumed by every later run with the same settings.

The state fits only the machine that saved it (arguments, initramfs, QEMU), so
all of that is in its name. 9p and the pair's wire cannot be saved.
"""

import dataclasses
import hashlib
import json
import os
import shlex
import socket
import time

import host
import image as base_image
from errors import LabError
from machine import BOOT_TOKEN, Machine
from supervise import supervise

BOOT_SECONDS = 120
# Sparse: only a limit to the job's size, and part of the machine's hardware.
DISK_BYTES = 1 << 30


def make_disk(path):
    with open(path, "wb") as file:
        file.truncate(DISK_BYTES)


def state_file(settings, image, cache, directory):
    """Path of the state that fits `settings`, saved first where there is none yet."""
    # The disk's path differs between runs, and is no part of the state.
    command = dataclasses.replace(settings, disk="disk").command(image.kernel, image.initramfs)
    key = hashlib.sha256(repr((command, host.qemu_version())).encode()).hexdigest()[:16]
    path = os.path.join(image.directory, f"ready-{key}.state")
    if not os.path.exists(path):
        with base_image.lock(cache):
            if not os.path.exists(path):
                save(settings, image, directory, path)
    return path


def save(settings, image, directory, path):
    host.say("saving a ready guest (once; about 5 s)")
    socket_path = os.path.join(directory, "monitor")
    machine = Machine(settings, image, image.initramfs, directory, BOOT_TOKEN,
                      ("-qmp", f"unix:{socket_path},server=on,wait=off"))
    temporary = f"{path}.{os.getpid()}"
    deadline = time.monotonic() + 2 * BOOT_SECONDS
    try:
        supervise([machine], BOOT_SECONDS, until=lambda: machine.waits_for)
        if not machine.waits_for:
            raise LabError("the guest did not become ready to be saved (see above)")
        with Monitor(socket_path) as monitor:
            monitor.call("migrate-set-parameters", {"max-bandwidth": 1 << 40})
            monitor.call("migrate", {"uri": "exec:cat > " + shlex.quote(temporary)})
            while (state := monitor.call("query-migrate").get("status")) != "completed":
                if state in ("failed", "cancelled") or time.monotonic() > deadline:
                    raise LabError(f"QEMU could not save the guest's state in {temporary}")
                time.sleep(0.02)
        os.rename(temporary, path)
    finally:
        machine.kill()
        if os.path.exists(temporary):
            os.remove(temporary)


def resume_arguments(path):
    return ("-incoming", "exec:cat " + shlex.quote(path))


class Monitor:
    """QEMU's QMP, as far as saving needs it."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(BOOT_SECONDS)
        self.socket.connect(path)
        self.lines = self.socket.makefile("r")
        self.lines.readline()
        self.call("qmp_capabilities")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.lines.close()
        self.socket.close()

    def call(self, command, arguments=None):
        request = {"execute": command, "arguments": arguments or {}}
        self.socket.sendall(json.dumps(request).encode())
        for line in self.lines:
            answer = json.loads(line)
            if "error" in answer:
                raise LabError(f"QEMU refused {command}: {answer['error']['desc']}")
            if "return" in answer:
                return answer["return"]
        raise LabError(f"QEMU ended during {command}")
