"""Peak memory of a process."""

import resource
import sys
from pathlib import Path

__all__ = ["peak_memory"]


def peak_memory() -> float:
    """Most resident memory of this process so far, in MB.

    What Linux says of resource usage is at least that of the process which started this one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1000
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (1e6 if sys.platform == "darwin" else 1e3)
