"""One QEMU process: its command line, what its guest tells, and its certain end."""

import ctypes
import dataclasses
import os
import secrets
import shlex
import signal
import subprocess

import host
from marks import MarkReader

KERNEL_ARGS = ("console=ttyS0 panic=-1 oops=panic mitigations=off nokaslr "
               "tsc=reliable no_timer_check random.trust_cpu=on")
# guest/init's, until it has read its job's.
BOOT_TOKEN = "boot"
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


@dataclasses.dataclass
class Settings:
    """A machine's hardware. Equal settings make equal, hence resumable, machines."""

    cpus: int = 2
    # QEMU's TCG runs `rep movsb` and pclmul, which newer models have, slowly:
    # qemu64 has twice the RDMA bandwidth of `max`.
    cpu_model: str = "qemu64"
    memory_mib: int = 512
    mtu: int = 4200
    kernel_args: str = ""
    # How fast its time stamp counter runs (see tsc.py); 0: its kernel finds out.
    tsc_khz: int = 0
    verbose: bool = False
    node: str = "A"
    # Directory with the sockets of a pair's wire; None for a single machine.
    wire: str | None = None
    share: str | None = None
    # Raw image by which a resumed machine gets its job; None: no such disk.
    disk: str | None = None

    def environment(self):
        """What guest/init reads; the kernel hands unknown NAME=VALUE arguments to it."""
        pairs = {"LAB_NODE": self.node, "LAB_NODES": 2 if self.wire else 1, "LAB_MTU": self.mtu,
                 "LAB_SHARE": 1 if self.share else "", "LAB_SNAPSHOT": 1 if self.disk else ""}
        return " ".join(f"{name}={value}" for name, value in pairs.items() if value)

    def command(self, kernel, initramfs):
        clock = f"tsc_early_khz={self.tsc_khz}" if self.tsc_khz else ""
        loglevel = "loglevel=7" if self.verbose else "quiet"
        command = [
            host.QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-machine", "pc", "-accel", "tcg,thread=multi", "-cpu", self.cpu_model,
            "-smp", str(self.cpus), "-m", str(self.memory_mib),
            "-kernel", kernel, "-initrd", initramfs,
            "-append", f"{KERNEL_ARGS} {clock} {loglevel} {self.kernel_args} {self.environment()}",
        ]
        if self.wire:
            # The second wire is for tests with two rails: eth1, which nothing configures.
            for number in range(2):
                here, there = (os.path.join(self.wire, f"{node}{number}.sock")
                               for node in (self.node, "B" if self.node == "A" else "A"))
                # romfile: its boot ROM is in a package that is only recommended, and useless here.
                command += [
                    "-netdev", f"dgram,id=wire{number},local.type=unix,local.path={here},"
                               f"remote.type=unix,remote.path={there}",
                    "-device", f"virtio-net-pci,netdev=wire{number},romfile=,host_mtu={self.mtu},"
                               f"mac=52:54:00:09:0{number}:0{1 if self.node == 'A' else 2}",
                ]
        if self.share:
            path = self.share.replace(",", ",,")
            command += ["-fsdev", f"local,id=share,security_model=none,path={path}",
                        "-device", "virtio-9p-pci,fsdev=share,mount_tag=share"]
        if self.disk:
            command += ["-drive", f"file={self.disk},format=raw,if=none,id=job",
                        "-device", "virtio-blk-pci,drive=job"]
        return command


class Machine:
    """A running guest. `status` is set once it has ended."""

    def __init__(self, settings, image, initramfs, directory, token, extra=()):
        self.name = settings.node
        self.marks = MarkReader(token)
        self.status = None
        self.started = False
        self.waits_for = None
        self.console = os.path.join(directory, f"{self.name}.console")
        self.errors = os.path.join(directory, f"{self.name}.qemu")
        command = [*settings.command(image.kernel, initramfs),
                   "-chardev", f"file,id=console,path={self.console}", "-serial", "chardev:console",
                   "-chardev", "stdio,id=job,signal=off", "-serial", "chardev:job", *extra]
        if settings.verbose:
            host.say(shlex.join(command))
        parent = os.getpid()
        with open(self.errors, "wb") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0,
                # Own group: a ^C must reach this script, which then ends QEMU.
                start_new_session=True, preexec_fn=lambda: die_with(parent))

    @staticmethod
    def new_token():
        """For the marks of one job (see marks.py)."""
        return secrets.token_hex(8)

    def on_bytes(self, data):
        """Takes raw output of the machine; returns what of it is the job's."""
        output, marks = self.marks.feed(data)
        for verb, argument in marks:
            if verb == "start":
                self.started = True
            elif verb == "sync":
                self.waits_for = argument
            elif verb == "exit":
                self.status = int(argument)
        return output

    def answer(self, text):
        """Ends the guest's wait for the host (labsync)."""
        self.waits_for = None
        try:
            self.process.stdin.write(text.encode() + b"\n")
        except BrokenPipeError:
            # The machine is gone; its output's end tells so.
            pass

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def log(self, lines):
        """The end of what QEMU and the guest's kernel said."""
        text = ""
        for path in (self.errors, self.console):
            if os.path.exists(path):
                with open(path, errors="replace") as file:
                    text += file.read()
        return text.strip().splitlines()[-lines:]


def die_with(parent):
    """In the child: be killed when the parent ends, however it ends (also by SIGKILL)."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
