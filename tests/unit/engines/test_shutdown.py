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
shutdown.finish(1)
"""


@pytest.mark.parametrize(("state", "code"), [("stopping", 130), ("alone", 1)])
def test_an_interruption_keeps_its_exit_code_where_ray_hangs(state, code):
    done = subprocess.run([sys.executable, "-c", PROGRAM, state], timeout=30, check=False)
    assert done.returncode == code
