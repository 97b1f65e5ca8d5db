"""Starting the processes of one measurement, watching them, and leaving none behind whatever happens."""

import ctypes
import os
import signal
import subprocess
import time

_SET_PARENT_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.02


class PeerFailed(Exception):
    """A measurement that did not come to its end; the message is one line."""


def _prctl(option, value):
    try:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except (OSError, AttributeError):
        # No Linux: then only the group is ended, not what left it.
        pass


def adopt_orphans():
    """From now on grandchildren whose parent ended become children of this process, so that they can be ended and reaped."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def realtime(command):
    """The command at a priority at which other programs do not take the processors from it."""
    return ["chrt", "-r", "5", *command]


def may_realtime():
    """Whether this process may give that priority."""
    return ask(realtime(["true"]), None)[0]


def last_line(path, most=300):
    """The last line of a log that says something."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 8192))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return "(no log)"
    for line in reversed(lines):
        if line.strip():
            return line.strip()[:most]
    return "(it said nothing)"


def _children():
    """Processes whose parent is this one."""
    own, found = os.getpid(), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            if parent == own:
                found.append(int(name))
    return found


class Group:
    """The processes of one measurement; on leaving the `with` block all of them have ended and are reaped."""

    def __init__(self, folder):
        self.folder = folder
        self.members = []
        self.others = set(_children())

    def start(self, name, command, environment, needed=True, output=None, folder=None):
        """Starts one process with its own log, in `folder`; what it prints goes to the log too, or to the file `output`.

        Those that are not `needed` serve the others: nobody waits for their end."""
        log = os.path.join(self.folder, f"{name}.log")
        with open(log, "wb") as file, open(output or os.devnull, "wb") as printed:
            # The signal is for the case that this process is killed: nothing runs on without it.
            child = subprocess.Popen(
                command,
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=printed if output else file,
                stderr=file,
                start_new_session=True,
                preexec_fn=lambda: _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM),
            )
        self.members.append((name, child, log, needed))

    def wait(self, deadline_s):
        """Until all needed processes have ended well; PeerFailed when one ends badly or the time is over."""
        end = time.monotonic() + deadline_s
        while True:
            waiting = []
            for name, child, log, needed in self.members:
                code = child.poll()
                if code is None:
                    if needed:
                        waiting.append((name, log))
                elif code != 0:
                    how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
                    raise PeerFailed(f"{name} {how}: {last_line(log)}")
            if not waiting:
                return
            if time.monotonic() > end:
                name, log = waiting[0]
                raise PeerFailed(f"{name} had not ended after {deadline_s:.0f} s; it last said: {last_line(log)}")
            time.sleep(_POLL_S)

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        for number, patience in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 10.0)):
            for _, child, _, _ in self.members:
                self._signal(child, number)
            end = time.monotonic() + patience
            while any(child.poll() is None for _, child, _, _ in self.members) and time.monotonic() < end:
                time.sleep(_POLL_S)
        self._end_orphans()

    @staticmethod
    def _signal(child, number):
        # Only while it is not reaped: afterwards the number may be somebody else's.
        if child.poll() is None:
            try:
                os.killpg(child.pid, number)
            except (ProcessLookupError, PermissionError):
                pass

    def _end_orphans(self):
        """Ends what the members started and left, until there is nothing more."""
        end = time.monotonic() + 10.0
        while time.monotonic() < end:
            orphans = [child for child in _children() if child not in self.others]
            if not orphans:
                return
            for orphan in orphans:
                try:
                    os.kill(orphan, signal.SIGKILL)
                    os.waitpid(orphan, 0)
                except (ProcessLookupError, ChildProcessError, PermissionError):
                    pass


def ask(command, environment, timeout_s=120.0):
    """(whether it ended well, what it printed) of a short command."""
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False, ""
    return done.returncode == 0, done.stdout
