"""What is known of the machine: the processor, what it can do, and how much memory is free."""

import os
import platform


def cpu_model():
    """The processor as the kernel names it."""
    found = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for text in file:
                key, _, value = text.partition(":")
                found.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    name = found.get("model name", platform.machine())
    place = ", ".join(f"{key} {found[key]}" for key in ("cpu family", "model", "stepping") if key in found)
    return f"{name} ({place})" if place else name


def cpu_flags():
    """What the processor can do, as the kernel names it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for text in file:
                if text.startswith("flags"):
                    return set(text.partition(":")[2].split())
    except OSError:
        pass
    return set()


def available_mib(path="/proc/meminfo"):
    """Memory in MiB that new processes can have without paging, or None where the kernel does not tell."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for text in file:
                if text.startswith("MemAvailable:"):
                    return int(text.split()[1]) / 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def described():
    """Processor, cores and kernel."""
    kernel = f"{platform.system()} {platform.release()}"
    return {"cpu": cpu_model(), "cores": len(os.sched_getaffinity(0)), "kernel": kernel, "python": platform.python_version()}
