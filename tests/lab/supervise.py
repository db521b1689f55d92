"""Runs machines to their end: passes output on, keeps the clock, answers labsync.

Whatever happens here (end, timeout, signal, error), no QEMU is left running.
"""

import contextlib
import os
import select
import selectors
import signal
import sys
import time

import host

TIMEOUT = 124
GUEST_DIED = 125
CONSOLE_LINES = 60
# A resumed machine may lose what arrives before its serial port is restored.
KNOCK_SECONDS = 0.05
# How long after the timeout a stuck write to our own output is broken off.
HARD_STOP_SECONDS = 2


class Interrupted(Exception):
    """A signal asked to stop; `number` is which."""

    def __init__(self, number):
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def signals_raise():
    """Makes signals that end a program exceptions, so that `finally` runs."""
    def on_signal(number, _):
        # Only once: a second one must not break off the cleaning up.
        for other in previous:
            signal.signal(other, signal.SIG_IGN)
        raise Interrupted(number)

    previous = {number: signal.getsignal(number)
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)}
    for number in previous:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class Printer:
    """Job output to stdout: as it comes for one machine, in whole lines "A| " for two."""

    def __init__(self, prefix):
        self.prefix = prefix
        self.line = b""

    def write(self, data):
        if self.prefix:
            *lines, self.line = (self.line + data).split(b"\n")
            data = b"".join(self.prefix + line + b"\n" for line in lines)
        self._put(data)

    def end(self):
        if self.line:
            self._put(self.prefix + self.line + b"\n")
            self.line = b""

    @staticmethod
    def _put(data):
        # Not by sys.stdout: what it buffers, it would try to write again at the exit.
        while data:
            try:
                data = data[os.write(1, data):]
            except BlockingIOError:
                select.select([], [1], [])


def supervise(machines, timeout, resumed=False, until=None):
    """Runs until every machine has a status, or `until()` holds, or time is up."""
    deadline = time.monotonic() + timeout
    signal.setitimer(signal.ITIMER_REAL, timeout + HARD_STOP_SECONDS)
    printers = {m: Printer(f"{m.name}| ".encode() if len(machines) > 1 else b"") for m in machines}
    with selectors.DefaultSelector() as selector:
        for machine in machines:
            selector.register(machine.process.stdout, selectors.EVENT_READ, machine)
        while any(m.status is None for m in machines) and not (until and until()):
            left = deadline - time.monotonic()
            if left <= 0:
                time_out(machines, timeout)
                break
            knock = resumed and not machines[0].started
            if knock:
                machines[0].answer("go")
            for key, _ in selector.select(KNOCK_SECONDS if knock else left):
                machine = key.data
                data = os.read(machine.process.stdout.fileno(), 65536)
                printers[machine].write(machine.on_bytes(data))
                if not data:
                    selector.unregister(machine.process.stdout)
                    if machine.status is None:
                        died(machine)
            answer_syncs(machines)
    for printer in printers.values():
        printer.end()
    signal.setitimer(signal.ITIMER_REAL, 0)


def answer_syncs(machines):
    """Lets machines that wait in labsync go on, once they all wait for the same."""
    waiting = [m for m in machines if m.waits_for is not None]
    if len(machines) < 2 or not waiting:
        return
    names = {m.waits_for for m in waiting}
    ended = [m for m in machines if m.status is not None]
    if ended:
        answer = f"machine {ended[0].name} has ended"
    elif len(waiting) < len(machines):
        return
    elif len(names) == 1:
        answer = "go"
    else:
        answer = "the other machine waits for another name (" + " / ".join(sorted(names)) + ")"
    for machine in waiting:
        machine.answer(answer)


def time_out(machines, timeout):
    for machine in machines:
        if machine.status is None:
            machine.status = TIMEOUT
            where = "has not ended" if machine.started else "has not even started its job"
            host.say(f"timeout: machine {machine.name} {where} after {timeout:g} s (-t SECONDS gives more)")
            show_log(machine)


def died(machine):
    machine.status = GUEST_DIED
    host.say(f"machine {machine.name} died before its job ended; its last console lines:")
    show_log(machine)


def show_log(machine):
    for line in machine.log(CONSOLE_LINES):
        print(f"  {machine.name} console| {line}", file=sys.stderr)
