"""What breaks in practice, done to real processes: what survives, and for how long it stalls.

Each test prints a line with its figures, which docs/reliability.md quotes; run them with
`pytest tests/deployment -m slow -s`. Clients train for some seconds, so that there is a middle of a
round to break things in.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest
from in_process import assert_same, federate, settings
from safetensors.numpy import load_file

from deployment.federation import WARM, Federation, Program, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SLOW = {"local_epochs": 8, "shards": 5}
TOLERANT = {**SLOW, "tolerate_failures": True, "min_replies": 1}


def start(made: Federation, nodes: int) -> Federation:
    made.start_superlink()
    made.register(*range(nodes))
    for number in range(nodes):
        made.start_node(number, nodes, WARM)
    return made


def finish(run: Program) -> str:
    try:
        run.process.wait(600)
    finally:
        run.stop()
    return run.text()


def show(event: str, made: Federation, name: str) -> list[dict]:
    rows = made.rows(name)
    told = [
        f"{row['seconds']:.0f} s ({row['clients']} of {row['clients'] + row['failed']})"
        for row in rows
    ]
    print(f"\nFIGURE {event}: rounds took {', '.join(told)}")
    return rows


def start_until_accepted(made: Federation, number: int) -> float:
    """Start a SuperNode every five seconds, as systemd does; returns the seconds it took.

    Flower refuses a key that it believes online until two heartbeats have stayed away.
    """
    begun = time.monotonic()
    before = made.nodes[number].text().count("SuperNode ID")
    while not accepted(made.start_node(number, 2, WARM), before):
        made.nodes[number].stop()
        time.sleep(5)
    return time.monotonic() - begun


def accepted(node: Program, before: int) -> bool:
    """Wait for the SuperLink's verdict on a node whose log has `before` earlier acceptances."""
    wait_until(
        lambda: node.process.poll() is not None or node.text().count("SuperNode ID") > before,
        60, "verdict on the restarted node",
    )  # fmt: skip
    return node.process.poll() is None


def test_a_node_killed_in_mid_round_and_restarted_rejoins_with_its_state(new_federation):
    made = start(new_federation(2), 2)
    run = made.start_run("killed", method="scaffold", num_rounds=5, **TOLERANT)
    made.wait_for_training(1, 2)
    made.nodes[1].signal(signal.SIGKILL)
    back = start_until_accepted(made, 1)
    log = finish(run)
    rows = show(f"SIGKILL of a SuperNode, accepted again after {back:.0f} s", made, "killed")
    assert made.summary("killed")["status"] == "completed", log
    assert [row["clients"] for row in rows][:2] == [2, 1]
    assert "client 1: its node reported" in rows[1]["failures"][0]
    assert rows[-1]["clients"] == 2, "the restarted node, with its control variate, is back"
    assert rows[1]["seconds"] < 120


def test_a_node_stopped_properly_is_named_at_once_and_rejoins(new_federation):
    made = start(new_federation(2), 2)
    run = made.start_run("stopped", num_rounds=4, **TOLERANT)
    made.wait_for_training(1, 2)
    made.nodes[1].stop()
    back = start_until_accepted(made, 1)
    log = finish(run)
    rows = show(f"SuperNode stopped, accepted again after {back:.0f} s", made, "stopped")
    assert made.summary("stopped")["status"] == "completed", log
    assert rows[1]["failures"][0].startswith("client 1: its node reported"), rows[1]
    assert rows[-1]["clients"] == 2


def test_a_split_that_changes_on_a_host_during_the_run_ends_it_by_name(new_federation, tmp_path):
    split = tmp_path / "split.json"
    halves = [list(range(700)), list(range(700, 1400))]
    split.write_text(json.dumps({"train": halves}))
    made = new_federation(2)
    made.start_superlink()
    made.register(0, 1)
    for number in range(2):
        made.start_node(number)  # without a warm worker: every message reads the file
    keys = {"partition": "file", "partition_file": str(split), "local_epochs": 8}
    run = made.start_run("moved", num_rounds=5, **keys)
    made.wait_for_round("moved", 1)
    split.write_text(json.dumps({"train": halves[::-1]}))
    log = finish(run)
    show("split changed on the hosts", made, "moved")
    reason = made.summary("moved")["reason"]
    assert re.search("client [01] failed in round [23]: its node has the files 'split", reason), log
    assert made.summary("moved")["status"] == "failed"


def test_a_straggler_past_the_round_timeout_is_left_out_and_comes_back(new_federation):
    made = start(new_federation(2), 2)
    run = made.start_run("straggler", num_rounds=6, round_timeout=40.0, **TOLERANT)
    made.wait_for_training(1, 2)
    made.nodes[1].signal(signal.SIGSTOP)
    made.wait_for_round("straggler", 2)
    made.nodes[1].signal(signal.SIGCONT)
    log = finish(run)
    rows = show("straggler, round-timeout 40 s", made, "straggler")
    assert made.summary("straggler")["status"] == "completed", log
    assert rows[1]["failures"] == ["client 1: its node did not answer in time (round-timeout)"]
    assert 40 <= rows[1]["seconds"] < 50
    assert rows[-1]["clients"] == 2


def test_a_node_that_joins_late_is_waited_for(new_federation):
    made = new_federation(2)
    made.start_superlink()
    made.register(0, 1)
    made.start_node(0, 2, WARM)
    run = made.start_run("late", num_rounds=2)
    wait_until(lambda: "query message" in made.nodes[0].text(), 60, "first node's answer")
    time.sleep(10)
    assert not made.rows("late")
    made.start_node(1, 2, WARM)
    joined = time.monotonic()
    made.wait_for_round("late", 1)
    print(f"\nFIGURE late joiner: round 1 done {time.monotonic() - joined:.0f} s after its start")
    log = finish(run)
    assert made.summary("late")["status"] == "completed", log
    assert [row["clients"] for row in show("late joiner", made, "late")] == [2, 2]


RESUMED = {"method": "scaffold", "num_rounds": 3, "checkpoint_every": 1, "keep_state": True, **SLOW}


def reference() -> dict:
    """The model of the run that nothing interrupts."""
    keys = {key: value for key, value in RESUMED.items() if key != "keep_state"}
    return federate(
        settings(batch_size="auto", **keys, num_clients=2, participation=1.0, threads=1), nodes=2
    )[0]


def assert_resumed(made: Federation, name: str) -> None:
    found = load_file(made.directory(name) / "model.safetensors")
    expected = reference()
    assert_same(expected, {key: found[key] for key in expected})
    assert [row["round"] for row in made.rows(name)] == [1, 2, 3]


def test_a_killed_server_app_resumes_to_the_same_bits(new_federation):
    made = start(new_federation(2), 2)
    run = made.start_run("server-app", **RESUMED)
    made.wait_for_round("server-app", 1)
    made.wait_for_training(0, 2)
    found = subprocess.run(
        ["pgrep", "-f", f"flwr-serverapp.*:{made.control}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    for pid in found.stdout.split():
        os.kill(int(pid), signal.SIGKILL)
    killed = time.monotonic()
    finish(run)
    noticed = time.monotonic() - killed
    assert made.status() == "finished:failed"
    log = made.run("server-app", **RESUMED, resume="auto")
    assert made.summary("server-app")["status"] == "completed", log
    show(f"ServerApp killed, noticed after {noticed:.0f} s, resumed", made, "server-app")
    assert_resumed(made, "server-app")


def test_a_killed_superlink_restarts_with_its_database_and_the_run_resumes(new_federation):
    made = start(new_federation(2), 2)
    run = made.start_run("superlink", **RESUMED)
    made.wait_for_round("superlink", 1)
    made.wait_for_training(0, 2)
    made.superlink.signal(signal.SIGKILL)
    finish(run)
    time.sleep(5)
    restarted = time.monotonic()
    made.start_superlink()
    log = made.run("superlink", **RESUMED, resume="auto")
    assert made.summary("superlink")["status"] == "completed", log
    seconds = time.monotonic() - restarted
    show(f"SuperLink killed and back, run over {seconds:.0f} s after it", made, "superlink")
    assert_resumed(made, "superlink")


@pytest.fixture
def link():
    """A network namespace joined to this host by a virtual cable; gives a function that cuts it."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    space, ours = f"fedapp{os.getpid()}", f"fa{os.getpid() % 100000}"

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        ip("netns", "add", space)
        ip("link", "add", ours, "type", "veth", "peer", "name", "eth0", "netns", space)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr}")
    try:
        ip("addr", "add", "10.213.7.1/24", "dev", ours)
        ip("link", "set", ours, "up")
        ip("-n", space, "addr", "add", "10.213.7.2/24", "dev", "eth0")
        ip("-n", space, "link", "set", "lo", "up")
        ip("-n", space, "link", "set", "eth0", "up")
        yield space, lambda state: ip("link", "set", ours, state)
    finally:
        ip("link", "del", ours)  # the namespace lives on while a SuperNode is in it
        ip("netns", "del", space)


@pytest.mark.parametrize(("seconds", "lost"), [(10, 0), (100, 1)])
def test_a_cut_network_heals(new_federation, link, seconds, lost):
    """Short cuts are retried away; a long one costs the rounds it lasts, and the node returns."""
    space, switch = link
    made = new_federation(2, address="10.213.7.1")
    made.start_superlink()
    made.register(0, 1)
    made.start_node(0, 2, WARM)
    made.start_node(1, 2, WARM, wrapper=("ip", "netns", "exec", space))
    rounds = 3 if seconds < 60 else 8
    run = made.start_run("cut", num_rounds=rounds, **TOLERANT)
    made.wait_for_training(1, 2)
    switch("down")
    time.sleep(seconds)
    switch("up")
    log = finish(run)
    rows = show(f"network cut for {seconds} s", made, "cut")
    assert made.summary("cut")["status"] == "completed", log
    failed = sum(row["failed"] for row in rows)
    assert failed == 0 if not lost else failed >= 1
    assert rows[-1]["clients"] == 2
