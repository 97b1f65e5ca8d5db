"""What the selftests share: a folder for each test, programs made up for it, and the count of what passed."""

import contextlib
import io
import os
import sys
import tempfile
import unittest

import processes


def quietly(action, *arguments):
    """(result, what it printed) of a command of run.py."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        result = action(*arguments)
    return result, said.getvalue()


class InFolder(unittest.TestCase):
    """A test with a folder of its own."""

    def setUp(self):
        self.kept = tempfile.TemporaryDirectory()
        self.folder = self.kept.name
        self.addCleanup(self.kept.cleanup)

    def path(self, name, content=None):
        path = os.path.join(self.folder, name)
        if content is not None:
            with open(path, "wb" if isinstance(content, bytes) else "w") as file:
                file.write(content)
        return path

    def program(self, name, text):
        """A program of Python made up for a test."""
        path = self.path(name, f"#!{sys.executable}\n{text}")
        os.chmod(path, 0o755)
        return path


class Counted(unittest.TextTestResult):
    """Counts what passed."""

    passed = 0

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.stream.writeln(f"skipped: {reason}")


def main(*modules):
    """Runs all tests of the modules; the status of the process."""
    processes.adopt_orphans()
    tests = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromModule(module) for module in modules)
    result = unittest.TextTestRunner(stream=sys.stdout, resultclass=Counted).run(tests)
    failed = len(result.failures) + len(result.errors)
    print(f"{result.passed} passed, {failed} failed", flush=True)
    return 1 if failed else 0
