"""What the figures were taken on."""

from __future__ import annotations

import os
import platform
from importlib import metadata


def machine() -> dict:
    """CPU model, cores (all, and those that the benchmark may use), memory, versions."""
    model = platform.processor()
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return {
        "cpu": model, "cores": os.cpu_count(), "cores_used": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "python": platform.python_version(),
        **{package: metadata.version(package) for package in ("tensorflow", "keras", "psycopg")},
    }  # fmt: skip
