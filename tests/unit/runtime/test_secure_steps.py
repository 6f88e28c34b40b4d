"""The steps of secure aggregation beside training: a plain SuperNode starts a process for each."""

import subprocess
import sys

import pytest

from strategies.secure.messages import KEYS, SECURE

PROGRAM = f"""
import sys
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from fedapp.client_app import app

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
content = RecordDict({{"{SECURE}": ConfigRecord({{"session": b"s", "party": 1}})}})
message = Message(content, dst_node_id=1, message_type="query." + sys.argv[1])
message.metadata.__dict__["_message_id"] = "asked"
context = Context(1, 1, {{}}, RecordDict(), {{"secure-threshold": 0.5}})
try:
    print(sorted(app(message, context).content["{SECURE}"]))
except Exception as error:
    print(type(error).__name__)
print("torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("kind", "answer", "loaded"),
    [(KEYS, "['masking', 'sealing']", "False"), ("unknown", "ValueError", "True")],
)
def test_the_exchange_of_keys_loads_no_pytorch(kind, answer, loaded):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-2:] == [answer, loaded], done.stdout + done.stderr
