"""Ctrl-C before the command has begun ends it without a traceback."""

import signal
import subprocess
import sys

PRESS_CTRL_C = """
import os, runpy, signal, sys

class AtTheImport:
    def find_spec(self, name, *_):
        if name == "fedapp.cli.app":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, AtTheImport())
runpy.run_module("fedapp", run_name="__main__")
"""


def test_ctrl_c_during_the_imports_leaves_no_traceback():
    done = subprocess.run([sys.executable, "-c", PRESS_CTRL_C], capture_output=True, check=False)
    assert done.returncode == -signal.SIGINT
    assert (done.stdout, done.stderr) == (b"", b"")
