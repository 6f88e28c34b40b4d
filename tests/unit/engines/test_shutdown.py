"""The exit code of a simulation that another thread is stopping, also where Ray hangs."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading, time, types
from fedapp.engines import shutdown

shutdown._PATIENCE = 0.5
began = threading.Event()
sys.modules["ray"] = types.SimpleNamespace(shutdown=lambda: (began.set(), time.sleep(60)))
if sys.argv[1] == "stopping":
    threading.Thread(target=shutdown.interrupted, daemon=True).start()
    began.wait()
elif sys.argv[1] == "main thread":
    shutdown.interrupted()
shutdown.finish(1)
"""


RAY_THAT_CRASHES = """
import os, sys, types
from fedapp.engines import shutdown

def crash():
    os.write(2, b"StackTrace Information")
    raise SystemError

print("before", file=sys.stderr)
sys.modules["ray"] = types.SimpleNamespace(shutdown=crash)
shutdown.interrupted()
"""


@pytest.mark.parametrize(("state", "code"), [("stopping", 130), ("main thread", 130), ("alone", 1)])
def test_an_interruption_keeps_its_exit_code_where_ray_hangs(state, code):
    done = subprocess.run([sys.executable, "-c", PROGRAM, state], timeout=30, check=False)
    assert done.returncode == code


def test_an_interruption_hides_the_errors_of_a_ray_that_shuts_down():
    command = [sys.executable, "-c", RAY_THAT_CRASHES]
    done = subprocess.run(command, timeout=30, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "before\n")
