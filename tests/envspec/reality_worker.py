"""What really happens when modules are imported: run by the interpreter under test, standard library only.

Each module is imported as in a new process. A process that has imported package `a` and nothing else is the same as one
that begins `import a.b`, so the worker forks once per module along the package tree instead of starting interpreters.

    python reality_worker.py MODULES.json RESULTS.jsonl SECONDS

One result line for each module: {"module", "ok", "name", "error", "message", "asked"}. `name` is the first name in the
chain of exceptions that an ImportError carries ("package" or "module:name"); `asked` are the names the import system
was asked for ("dist:x" for metadata), which tells whether removing a distribution can matter to the module.
"""

# ruff: noqa: RET501, UP032, PTH100, PTH120, PTH123 -- run by old interpreters too

from __future__ import annotations

import json
import os
import re
import signal
import sys


class Recorder:
    """A finder that finds nothing and remembers what it was asked."""

    def __init__(self):
        self.asked = set()

    def find_spec(self, name, path=None, target=None):
        self.asked.add(name)
        return None

    def find_distributions(self, context=None):
        self.asked.add("dist:{}".format(getattr(context, "name", None) or "*"))
        return iter(())


def name_of(error):
    """The missing name an exception carries, in itself or in the nearest exception behind it."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, ImportError):
            match = re.match(r"cannot import name '([^']+)'", str(error))
            if match and error.name:
                return "{}:{}".format(error.name, match.group(1))
            # What is raised again as a PackageNotFoundError of another text has that text for its name.
            if error.name and re.match(r"[\w.-]+$", error.name):
                return error.name
        error = error.__cause__ or error.__context__
    return None


def tree_of(names):
    root = {}
    for name in names:
        node = root
        for part in name.split("."):
            node = node.setdefault(part, {})
    return root


class Worker:
    def __init__(self, wanted, out, seconds):
        self.wanted = wanted
        self.out = out
        self.seconds = seconds
        self.recorder = Recorder()

    def write(self, entry):
        os.write(self.out, (json.dumps(entry) + "\n").encode("ascii"))

    def report(self, name, tree, entry):
        """The same result for a module and everything below it: parents are imported first."""
        if name in self.wanted:
            self.write(dict(entry, module=name))
        for part, below in tree.items():
            self.report(name + "." + part, below, entry)

    def fork(self, name, tree):
        pid = os.fork()
        if pid:
            _, status = os.waitpid(pid, 0)
            if os.WIFSIGNALED(status):
                entry = {"ok": False, "name": None, "error": "signal {}".format(os.WTERMSIG(status)), "message": "",
                         "asked": ["*"]}  # fmt: skip
                self.report(name, tree, entry)
            return
        try:
            self.visit(name, tree)
        finally:
            os._exit(0)

    def visit(self, name, tree):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(self.seconds)
        try:
            __import__(name)
        except BaseException as error:
            signal.alarm(0)
            entry = {"ok": False, "name": name_of(error), "error": type(error).__name__, "message": str(error)[:200],
                     "asked": sorted(self.recorder.asked)}  # fmt: skip
            self.report(name, tree, entry)
            return
        signal.alarm(0)
        if name in self.wanted:
            entry = {"ok": True, "name": None, "error": None, "message": "", "asked": sorted(self.recorder.asked)}
            self.write(dict(entry, module=name))
        for part, below in tree.items():
            self.fork(name + "." + part, below)


def main():
    with open(sys.argv[1]) as file:
        names = json.load(file)
    out = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    seconds = int(sys.argv[3])
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    sys.argv[:] = [""]
    sys.path[:] = [entry for entry in sys.path if entry and entry != os.path.dirname(os.path.abspath(__file__))]
    worker = Worker(set(names), out, seconds)
    sys.meta_path.insert(0, worker.recorder)
    for part, below in tree_of(names).items():
        worker.fork(part, below)


if __name__ == "__main__":
    main()
