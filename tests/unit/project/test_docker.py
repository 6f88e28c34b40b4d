"""The container files promise things that a typing error breaks in silence: keys, users, TLS."""

import os
import re
import shutil
import subprocess

import pytest
import yaml
from flwr.common.config import parse_config_args
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode
from project_tree import ROOT

DOCKER = ROOT / "docker"
NODES = [f"node-{number}" for number in range(4)]


@pytest.fixture(scope="module")
def services() -> dict:
    return yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]


def words(service: dict) -> str:
    command = service["command"]
    return " ".join([command] if isinstance(command, str) else command)


def mounts(service: dict) -> dict[str, str]:
    return {v.split(":")[1]: v.split(":")[0] for v in service.get("volumes", ())}


def test_a_superlink_and_four_nodes_with_one_image(services):
    assert set(services) == {"prepare", "superlink", "register", "run", *NODES}
    assert {service["image"] for service in services.values()} == {"fedapp:local"}
    assert [words(services[n]) for n in NODES] == [f"/app/docker/node.sh {i} 4" for i in range(4)]


def test_tls_keys_and_a_database_are_on(services):
    command = words(services["superlink"])
    for option in ("ssl-ca-certfile", "ssl-certfile", "ssl-keyfile", "enable-supernode-auth"):
        assert f"--{option}" in command
    assert "--database=/state/" in command
    node = (DOCKER / "node.sh").read_text()
    assert "--root-certificates" in node
    assert "--auth-supernode-private-key" in node
    for path in (*DOCKER.glob("*.sh"), *DOCKER.glob("*.yaml")):
        assert "--insecure" not in path.read_text()


def test_only_the_preparation_is_root(services):
    assert [name for name, s in services.items() if s.get("user") == "root"] == ["prepare"]
    assert not {name for name, s in services.items() if s.get("privileged")}
    stages = (DOCKER / "Dockerfile").read_text().split("\nFROM ")
    assert len(stages) == 3, "a comment and two stages"
    assert "\nUSER fedapp\n" in stages[2]


def test_a_container_sees_its_own_secrets_only(services):
    for name in NODES:
        assert mounts(services[name])["/certificates"] == f"./certificates/{name}"
    assert mounts(services["superlink"])["/certificates"] == "./certificates/superlink"
    for name in ("run", "register"):
        assert mounts(services[name])["/certificates"] == "./certificates/operator"
    for name in services.keys() - {"prepare"}:
        assert any(v.endswith("/certificates:ro") for v in services[name]["volumes"]), name


def test_secrets_stay_out_of_image_and_repository():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    kept = [line for line in ignored if line.startswith("!docker")]
    assert kept == [f"!docker/{path.name}" for path in sorted(DOCKER.glob("*.sh"))]
    assert "/docker/certificates/" in (ROOT / ".gitignore").read_text()
    assert not re.search("PRIVATE KEY|COPY.*certificates", (DOCKER / "Dockerfile").read_text())


def test_long_lived_services_have_health_checks_and_come_after_what_they_need(services):
    assert all("healthcheck" in services[name] for name in ("superlink", *NODES))
    assert services["superlink"]["depends_on"]["prepare"]["condition"].endswith("successfully")
    assert services["register"]["depends_on"]["superlink"]["condition"] == "service_healthy"
    for name in NODES:
        assert services[name]["depends_on"]["register"]["condition"].endswith("successfully")


def test_the_gpu_file_gives_every_node_a_gpu():
    extra = yaml.safe_load((DOCKER / "compose.gpu.yaml").read_text())["services"]
    assert list(extra) == NODES
    for number, service in enumerate(extra.values()):
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert device["driver"] == "nvidia"
        assert device["capabilities"] == ["gpu"]
        assert device["device_ids"] == [f"${{NODE_{number}_GPU:-{number}}}"]


def test_the_image_is_pinned_by_the_lock_file():
    text = (DOCKER / "Dockerfile").read_text()
    assert text.count("-c requirements.lock") == 2
    assert "--require-hashes -r uv.lock" in text


@pytest.mark.parametrize("script", sorted(DOCKER.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_valid_shell(script):
    done = subprocess.run(["sh", "-n", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("unit", sorted((DOCKER / "systemd").iterdir()), ids=lambda path: path.name)
def test_a_service_finds_the_programs_that_flower_starts_by_name(unit):
    text = unit.read_text()
    folder = re.search(r"^ExecStart=(\S+)/flower-", text, re.MULTILINE).group(1)
    assert re.search(rf"^Environment=PATH={folder}:/usr", text, re.MULTILINE)
    state = re.search(r"^StateDirectory=(\S+)$", text, re.MULTILINE).group(1)
    assert f"PYTHONPYCACHEPREFIX=/var/lib/{state}/" in text


def superlink_options(command: list[str]) -> None:
    """Let Flower read a SuperLink's command; it ends the program for an unknown option."""
    found = _parse_args_run_superlink().parse_args(command[1:])
    assert (command[0].rpartition("/")[2], found.enable_supernode_auth) == (
        "flower-superlink",
        True,
    )
    assert found.fleet_api_address == "0.0.0.0:9092"


def supernode_options(command: list[str], partition: int) -> None:
    """Let Flower read a SuperNode's command, and the node-config in it."""
    found = _parse_args_run_supernode().parse_args(command[1:])
    assert (command[0].rpartition("/")[2], found.superlink) == ("flower-supernode", "host:9092")
    node = parse_config_args([found.node_config])
    assert (node["partition-id"], node["worker"]) == (partition, "warm")


def unit_command(name: str, **values: str) -> list[str]:
    """Return the program and arguments of a systemd unit, each ${NAME} as one argument."""
    text = (DOCKER / "systemd" / name).read_text().replace("\\\n", " ")
    words = re.search(r"^ExecStart=(.*)$", text, re.MULTILINE)[1].replace("%i", "1").split()
    return [values[word[2:-1]] if word.startswith("${") else word for word in words]


def test_flower_knows_the_options_of_the_superlink(services):
    superlink_options(services["superlink"]["command"])
    superlink_options(unit_command("fedapp-superlink.service"))


def test_flower_knows_the_options_of_the_supernodes(tmp_path):
    program = tmp_path / "flower-supernode"
    program.write_text('#!/bin/sh\nprintf \'%s\\0\' "$0" "$@"\n')
    program.chmod(0o755)
    path, more = f"{tmp_path}:{os.environ['PATH']}", "data-dir='/my data'"
    variables = {"PATH": path, "SUPERLINK": "host:9092", "NODE_CONFIG": more}
    shell = ["sh", str(DOCKER / "node.sh"), "3", "4"]
    done = subprocess.run(shell, env=variables, capture_output=True, text=True, check=True)
    supernode_options(done.stdout.split("\0")[:-1], 3)
    config = 'partition-id=1 num-partitions=4 worker="warm"'
    values = {"SUPERLINK": "host:9092", "PORT": "9094", "NODE_CONFIG": config}
    supernode_options(unit_command("fedapp-supernode@.service", **values), 1)


@pytest.mark.parametrize("files", [["compose.yaml"], ["compose.yaml", "compose.gpu.yaml"]])
def test_the_compose_program_accepts_the_files(files):
    command = compose_program()
    for file in files:
        command += ["-f", str(DOCKER / file)]
    done = subprocess.run([*command, "config"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = set(yaml.safe_load(done.stdout)["services"])
    assert found == {"prepare", "superlink", "register", "run", *NODES}


def compose_program() -> list[str]:
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]):
            done = subprocess.run([*command, "version"], capture_output=True, check=False)
            if done.returncode == 0:
                return command
    pytest.skip("no Docker Compose here; the other tests read the files as YAML")
