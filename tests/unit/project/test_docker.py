"""The container files promise things that a typing error breaks in silence: keys, users, TLS."""

import re
import shutil
import subprocess

import pytest
import yaml
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
