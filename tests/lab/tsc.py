"""How fast the host's time stamp counter runs, which QEMU's emulator hands to its guests as theirs.

A guest's kernel finds this out at boot by counting against a timer, and is wrong by a factor of up
to ten where other work interrupts QEMU meanwhile: then all its clocks run too fast, and time limits
in it are met by what is not stuck. So it is told (`tsc_early_khz`).
"""

import ctypes
import mmap
import os
import platform
import time

# rdtsc; shl rdx, 32; or rax, rdx; ret
READ_COUNTER = b"\x0f\x31\x48\xc1\xe2\x20\x48\x09\xd0\xc3"
MEASURED_SECONDS = 0.05
# Measurements that differ by less are of the same host.
TOLERANCE = 0.005


def khz(directory):
    """The frequency, 0 where it cannot be measured. Kept in `directory`, so that it stays the same
    from run to run: it is a part of the settings of a saved guest."""
    try:
        measured = measure()
    except OSError:
        # A host on which memory cannot be made executable.
        return 0
    path = os.path.join(directory, "tsc_khz")
    try:
        with open(path) as file:
            known = int(file.read())
    except (OSError, ValueError):
        known = 0
    if abs(known - measured) <= measured * TOLERANCE:
        return known
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w") as file:
        file.write(str(measured))
    os.replace(temporary, path)
    return measured


def measure():
    if platform.machine() != "x86_64":
        return 0
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(READ_COUNTER)
    counter = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    (time_before, ticks_before) = sample(counter)
    time.sleep(MEASURED_SECONDS)
    (time_after, ticks_after) = sample(counter)
    return round((ticks_after - ticks_before) * 1_000_000 / (time_after - time_before))


def sample(counter):
    """The time, ns, and the counter at that time: of several readings that which took least."""
    readings = []
    for _ in range(20):
        before = time.monotonic_ns()
        ticks = counter()
        after = time.monotonic_ns()
        readings.append((after - before, (before + after) // 2, ticks))
    return min(readings)[1:]
