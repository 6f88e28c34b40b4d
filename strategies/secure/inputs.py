"""What all nodes of a masked round must have received equally, as part of their pair masks' keys.

A server could otherwise learn one node's update from the opened sum: it gives all other nodes a
learning rate of 0, or a model that cannot learn, and subtracts what they then send (Pasquini,
Francati and Ateniese 2022, CCS, model inconsistency). Masks of nodes with different inputs do not
cancel, so that such a sum cannot be opened.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from hashlib import sha256

from flwr.app import RecordDict

from strategies.rounds.records import TASK, Task


def inputs_of(
    content: RecordDict, configuration: str, known: dict[int, bytes] | None = None
) -> bytes:
    """Return a hash of a training message without what each node has for itself.

    It covers the model, all further arrays, and the task but for its clients; `configuration` names
    the run's configuration as this side knows it. `known` gets the hashes of arrays by their id,
    for messages that share them.
    """
    hasher = sha256()
    for part in _parts(content, configuration, {} if known is None else known):
        hasher.update(len(part).to_bytes(8, "big"))
        hasher.update(part)
    return hasher.digest()


def _parts(content: RecordDict, configuration: str, known: dict[int, bytes]) -> Iterator[bytes]:
    task = Task.from_record(content.config_records[TASK])
    common = asdict(replace(task, clients=(), accepted=()))
    yield configuration.encode()
    yield json.dumps(common, sort_keys=True).encode()
    for group, record in sorted(content.array_records.items()):
        for name, array in sorted(record.items()):
            form = [group, name, array.dtype, list(array.shape), array.stype]
            yield json.dumps(form).encode()
            if id(array) not in known:
                known[id(array)] = sha256(array.data).digest()
            yield known[id(array)]
