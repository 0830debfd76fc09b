"""How much memory this host, or this process's control group, has and has left."""

from __future__ import annotations

import os
from typing import Optional, Tuple


def read(path: str) -> Optional[str]:
    """Return a file's text without blanks around it, None if it can't be read."""
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return None


def total_and_available() -> Tuple[int, int]:
    """Return (total, available) bytes: the host's, or the control group's where that is less."""
    fields = {}
    for line in (read("/proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        fields[name] = int(value.split()[0]) * 1024
    total, available = fields.get("MemTotal", 0), fields.get("MemAvailable", 0)
    for limit, used, cache in (
        ("memory.max", "memory.current", "inactive_file"),  # control groups, version 2
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),  # version 1
    ):
        text, current = read("/sys/fs/cgroup/" + limit), read("/sys/fs/cgroup/" + used)
        if text and current and text.isdigit() and int(text) < total:
            stat = read("/sys/fs/cgroup/" + os.path.join(os.path.dirname(limit), "memory.stat")) or ""
            files = dict(line.split() for line in stat.splitlines())
            total = int(text)
            free = total - int(current) + int(files.get(cache, 0))  # the kernel gives file pages back first
            available = max(0, min(available, free))
    return total, available


def resident() -> int:
    """Return the bytes that this process has in memory."""
    return int(read("/proc/self/statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def available() -> int:
    """Return the bytes that are left."""
    return total_and_available()[1]
