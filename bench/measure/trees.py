"""Two commits as trees with release builds of what is measured, kept from one comparison to the next.

A commit never changes, so what was built of it once is taken again as long as the compiler and its flags are the same. Each has a folder of
its own: `tree`, a worktree of git, and `target`, which cargo builds in.
"""

import json
import os
import subprocess

CARGO = os.environ.get("CARGO", "cargo")
RUSTC = os.environ.get("RUSTC", "rustc")
# The programs that are measured, and the packages that they are in.
PROGRAMS = {"slackline": "slackline", "loopback": "slackline-bench"}


class TreeError(Exception):
    """A commit that cannot be checked out or built; the message is one line."""


def _ask(command, **more):
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **more)
    except OSError as error:
        raise TreeError(f"{command[0]} cannot be started: {error}") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise TreeError(f"{' '.join(command[:3])} ended with status {done.returncode}: {last}")
    return done.stdout.strip()


def git(repository, *command):
    """What git says."""
    return _ask(["git", "-C", repository, *command])


def commit_of(repository, name):
    """The full id of a commit by any of its names."""
    try:
        return git(repository, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except TreeError:
        raise TreeError(f"{name} is no commit of {repository}") from None


def uncommitted(repository):
    """Whether files that git knows differ from the last commit."""
    return bool(git(repository, "status", "--porcelain", "--untracked-files=no"))


def check_out(repository, commit, folder):
    """The tree of the commit in the folder; one that is there already is taken when nothing in it was changed."""
    tree = os.path.join(folder, "tree")
    if not os.path.isdir(tree):
        os.makedirs(folder, exist_ok=True)
        # Forced: where the folder was deleted by hand, git still knows of it.
        git(repository, "worktree", "add", "--force", "--detach", "--quiet", tree, commit)
    if git(tree, "rev-parse", "HEAD") != commit or uncommitted(tree):
        raise TreeError(f"{tree} is not as {commit[:12]} has it; remove it (git worktree remove --force {tree})")
    return tree


def executables(messages):
    """{name: path} of the programs and benches among cargo's messages, one JSON object a line."""
    found = {"programs": {}, "benches": {}}
    for line in messages.splitlines():
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if not isinstance(message, dict) or message.get("reason") != "compiler-artifact" or not message.get("executable"):
            continue
        kind = message["target"]["kind"]
        place = "programs" if "bin" in kind else "benches" if "bench" in kind else None
        if place:
            found[place][message["target"]["name"]] = message["executable"]
    return found


def build_command(programs, benches):
    """One command for all, since cargo decides about the features of dependencies for a command as a whole."""
    packages = dict.fromkeys([PROGRAMS[name] for name in programs] + (["slackline-bench"] if benches else []))
    command = [CARGO, "build", "--release", "--message-format=json-render-diagnostics"]
    for package in packages:
        command += ["--package", package]
    for name in programs:
        command += ["--bin", name]
    return command + (["--bench", "*"] if benches else [])


class Built:
    """A commit with its executables."""

    def __init__(self, commit, folder, tree):
        self.commit, self.folder, self.tree = commit, folder, tree
        self.stamp = os.path.join(folder, "built.json")
        self.kept = {"programs": {}, "benches": {}}

    @property
    def programs(self):
        return self.kept["programs"]

    @property
    def benches(self):
        return self.kept["benches"]

    def _tools(self):
        return {"rustc": _ask([RUSTC, "--version", "--verbose"], cwd=self.tree), "flags": os.environ.get("RUSTFLAGS", "")}

    def _load(self, tools):
        try:
            with open(self.stamp, encoding="utf-8") as file:
                kept = json.load(file)
            if kept["tools"] == tools and all(os.access(path, os.X_OK) for kind in ("programs", "benches") for path in kept[kind].values()):
                self.kept = kept
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass

    def build(self, programs, benches, say):
        """Builds what is missing of these programs, and the benches where they are wanted."""
        tools = self._tools()
        self._load(tools)
        if all(name in self.programs for name in programs) and (self.benches or not benches):
            return
        log = os.path.join(self.folder, "build.log")
        say(f"{self.commit[:12]}: building in {self.folder} (minutes, the first time)")
        environment = {**os.environ, "CARGO_TARGET_DIR": os.path.join(self.folder, "target"), "CARGO_TERM_COLOR": "never"}
        command = build_command(programs, benches)
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}
        try:
            with open(log, "w", encoding="utf-8") as file:
                done = subprocess.run(command, cwd=self.tree, env=environment, stderr=file, check=False, **streams)
        except OSError as error:
            raise TreeError(f"{command[0]} cannot be started: {error}") from error
        if done.returncode != 0:
            raise TreeError(f"{self.commit[:12]} does not build; {log} says why")
        found = executables(done.stdout)
        self.kept = {"tools": tools, **{kind: {**self.kept[kind], **found[kind]} for kind in ("programs", "benches")}}
        with open(self.stamp + ".part", "w", encoding="utf-8") as file:
            json.dump(self.kept, file, indent=1)
        os.replace(self.stamp + ".part", self.stamp)


def built(repository, name, place, programs, benches, say):
    """The commit of that name, checked out and built below `place`."""
    commit = commit_of(repository, name)
    folder = os.path.join(place, commit[:12])
    one = Built(commit, folder, check_out(repository, commit, folder))
    one.build(programs, benches, say)
    return one
