"""A node's part in secure aggregation, and what its operator allows of it.

The steps before and after training need no PyTorch, and this module does not import it: a SuperNode
without a warm worker starts a process for each of them.

The run's configuration comes from the server, so a node that does not trust the server reads these
rules from its own node-config: `secure-key`, its private key, and `secure-peers`, the folder with
the public keys of all nodes that may take part. With them the node signs its keys, requires
signatures of all others, and trains in runs with secure aggregation only. `secure-least` is the
fewest nodes of a round.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP384R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedapp.core.errors import UserError
from fedapp.runtime.node.state_folder import state_folder_of
from strategies.secure.messages import CONFIRM, FEWEST, KEYS, SECURE, SHARES, UNMASK
from strategies.secure.node import SecureNode
from strategies.secure.primitives import ProtocolBroken
from strategies.secure.signatures import NodeKeys, encoded

KEY, PEERS, LEAST = "secure-key", "secure-peers", "secure-least"
_STEPS_FOLDER = ".secure-steps"  # no run's name begins with a dot

Step = Callable[[SecureNode, Any], dict[str, Any]]
_STEPS: dict[str, Step] = {  # by kind of query
    KEYS: lambda node, asked: node.advertise(asked),  # begins a session with fresh public keys
    SHARES: lambda node, asked: node.share_secrets(asked),  # sealed for each party
    CONFIRM: lambda node, asked: node.confirm(asked),  # signs who has stayed
    UNMASK: lambda node, asked: node.unmask(asked),  # deletes the secrets
}


def answer_steps(app: ClientApp) -> None:
    """Let an app answer the queries of secure aggregation."""
    for kind, step in _STEPS.items():
        app.query(kind)(partial(_reply, step))


def _reply(step: Step, message: Message, context: Context) -> Message:
    """Take a step of secure aggregation; reply with its result, or with why it is refused."""
    try:
        answer = step(secure_node(context), message.content.config_records[SECURE])
    except (ProtocolBroken, UserError) as reason:
        answer = {"error": str(reason)}
    return Message(RecordDict({SECURE: ConfigRecord(answer)}), reply_to=message)


def secure_node(context: Context) -> SecureNode:
    """Return a node's side of secure aggregation.

    Raises:
        UserError: its keys cannot be read, or the folder for the notes of its steps not be made.
    """
    threshold = float(context.run_config["secure-threshold"])
    keys = keys_of(context.node_config)
    if keys is None:
        return SecureNode(context.state, threshold)
    chosen = str(context.node_config.get("state-dir", ""))  # not the run's, which the server sends
    steps = state_folder_of(chosen, "a node with signed keys notes its steps", _STEPS_FOLDER)
    return SecureNode(context.state, threshold, keys, steps)


def check_masked(node_config: Mapping[str, Any], masked: bool) -> None:
    """Raise UserError if the node sends masked sums only and is asked for an unmasked update."""
    if not masked and PEERS in node_config:
        raise UserError(
            f"this node sends masked sums only (node-config key '{PEERS}'), and the server asks "
            "for something else; set secure-aggregation to 'pairwise'"
        )


def keys_of(node_config: Mapping[str, Any]) -> NodeKeys | None:
    """Return the node's signing key and the keys that it knows; None if it has neither.

    Raises:
        UserError: a node-config key is without the other two that it needs, a file has no such
            key, or `secure-least` is too small.
    """
    named = [name for name in (KEY, PEERS) if name in node_config]
    if not named:
        if LEAST in node_config:
            raise UserError(f"node-config has '{LEAST}' without '{KEY}' and '{PEERS}'")
        return None
    if len(named) == 1:
        raise UserError(
            f"node-config has '{named[0]}' alone; signed keys need both '{KEY}', this node's "
            f"private key, and '{PEERS}', the folder of all nodes' public keys"
        )
    key = _private_key(Path(str(node_config[KEY])))
    known = frozenset(_known_keys(Path(str(node_config[PEERS]))))
    if encoded(key.public_key()) not in known:
        raise UserError(
            f"{node_config[PEERS]} has no public key of this node's own {node_config[KEY]}; "
            "copy its .pub file there"
        )
    return NodeKeys(key, known, _least(node_config.get(LEAST, FEWEST)))


def _least(value: object) -> int:
    if not isinstance(value, int) or value < FEWEST:
        raise UserError(f"node-config key '{LEAST}' is {value!r} but must be {FEWEST} or more")
    return value


def _private_key(file: Path) -> EllipticCurvePrivateKey:
    try:
        key = load_ssh_private_key(file.read_bytes(), None)
    except (OSError, TypeError, ValueError, UnsupportedAlgorithm) as error:
        raise UserError(f"node-config key '{KEY}': cannot read {file} ({error})") from None
    if not (isinstance(key, EllipticCurvePrivateKey) and isinstance(key.curve, SECP384R1)):
        raise UserError(
            f"node-config key '{KEY}': {file} has no P-384 key, as SuperNodes have (fedapp "
            "certificates makes them)"
        )
    return key


def _known_keys(folder: Path) -> list[bytes]:
    files = sorted(folder.glob("*.pub"))
    if len(files) < FEWEST:
        raise UserError(
            f"node-config key '{PEERS}': {folder} has {len(files)} files *.pub, and secure "
            f"aggregation needs at least {FEWEST} nodes"
        )
    return [_public_key(file) for file in files]


def _public_key(file: Path) -> bytes:
    try:
        key = load_ssh_public_key(file.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise UserError(f"node-config key '{PEERS}': cannot read {file} ({error})") from None
    if not (isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP384R1)):
        raise UserError(f"node-config key '{PEERS}': {file} is not the public half of a P-384 key")
    return encoded(key)


app = ClientApp()
answer_steps(app)
