"""A real federation on this machine: SuperLink and SuperNodes as processes, TLS, keys, a database.

Everything is as docs/deployment.md tells an engineer to start it, on free ports and below one
folder; each process has its own FLWR_HOME, as on hosts of their own, its log beside it, and is
stopped at the end together with what it started.
"""

import json
import os
import signal
import ssl
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import tomli_w
from packaging.version import Version
from waiting import wait_until

from fedapp.engines.deployment.certificates import make_certificates
from fedapp.engines.launch import environment_for, program
from fedapp.experiments.bench.superlink import free_port

ROOT = Path(__file__).parents[2]
# From 1.40 on SuperNodes speak HTTPS to the SuperLink's one port, before that gRPC to another.
GRPC = Version(metadata.version("flwr")) < Version("1.40")
WARM = 'worker="warm"'  # of a node-config: one process trains for all messages
QUICK = {"num-rounds": 2, "local-epochs": 1, "threads": 1, "shards": 5}


@dataclass
class Program:
    """A process with its log, in a session of its own so that its children end with it."""

    command: list[str]
    environment: Mapping[str, str]
    log: Path
    process: "subprocess.Popen[bytes]" = field(init=False)

    def __post_init__(self) -> None:
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(
                self.command, env=dict(self.environment), cwd=self.log.parent, stdout=file,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def signal(self, number: int, group: bool = True) -> None:
        if group:
            os.killpg(self.process.pid, number)
        else:
            os.kill(self.process.pid, number)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(15)
        with suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)  # whatever it left behind
        self.process.wait(5)


class Federation:
    """One SuperLink and its SuperNodes; `run` gives it a training to do."""

    def __init__(
        self,
        folder: Path,
        nodes: int = 2,
        poll: str = "0.1",
        address: str = "127.0.0.1",
        packages: Path | None = None,
    ) -> None:
        """Make keys for `nodes` SuperNodes.

        `poll` is the pause between Flower's looks for work, `address` where the SuperNodes find the
        SuperLink, beside loopback, `packages` a folder of Python packages for all processes.
        """
        self.folder, self.poll, self.address, self.packages = folder, poll, address, packages
        self.certificates = folder / "certificates"
        self.control = free_port()
        self.fleet = free_port() if GRPC else self.control
        make_certificates(self.certificates, [address], nodes)
        self.nodes: dict[int, Program] = {}
        self.user = self._home("user")
        connection = {"address": f"127.0.0.1:{self.control}"}
        connection["root-certificates"] = str(self.certificates / "ca.crt")
        settings = {"superlink": {"default": "tls", "tls": connection}}
        (folder / "user" / "config.toml").write_text(tomli_w.dumps(settings))

    def _home(self, name: str) -> dict[str, str]:
        (self.folder / name).mkdir(exist_ok=True)
        environment = environment_for(self.folder / name)
        if self.packages:
            others = environment.get("PYTHONPATH")
            found = [str(self.packages), *([others] if others else [])]
            environment["PYTHONPATH"] = os.pathsep.join(found)
        return environment | {
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": self.poll,
            "PYTHONUNBUFFERED": "1",
        }

    def start_superlink(self, **replaced: str) -> None:
        """Start the SuperLink, or start it again on its ports and database."""
        pki = self.certificates
        options = {
            "ssl-ca-certfile": str(pki / "ca.crt"), "ssl-certfile": str(pki / "superlink.crt"),
            "ssl-keyfile": str(pki / "superlink.key"), "port": str(self.control),
            "host": "127.0.0.1" if GRPC or self.address == "127.0.0.1" else "0.0.0.0",
            "fleet-api-address": f"{self.address}:{self.fleet}" if GRPC else "",
            "database": str(self.folder / "superlink" / "state.db"),
        } | {key.replace("_", "-"): value for key, value in replaced.items()}  # fmt: skip
        command = [program("flower-superlink"), "--enable-supernode-auth"]
        command += ["--disable-runtime-dependency-installation"]
        command += [p for key, value in options.items() if value for p in (f"--{key}", value)]
        home = self._home("superlink")
        self.superlink = Program(command, home, self.folder / "superlink" / "superlink.log")
        trust = ssl._create_unverified_context()  # this only waits; who checks is a test's matter

        def answers() -> bool:
            assert self.superlink.process.poll() is None, self.superlink.text()
            try:
                with urlopen(f"https://127.0.0.1:{self.control}/health", timeout=1, context=trust):
                    return True
            except (URLError, OSError):
                return False

        wait_until(answers, 60, "SuperLink")

    def register(self, *numbers: int) -> None:
        for number in numbers:
            key = self.certificates / f"node-{number}.pub"
            self.flwr("supernode", "register", str(key), "tls")

    def start_node(
        self, number: int, of: int = 2, config: str = "", wrapper: tuple[str, ...] = (), **more: str
    ) -> Program:
        """Start SuperNode `number`; `config` is added to its node-config, `wrapper` runs it."""
        options = {
            "superlink": f"{self.address}:{self.fleet}",
            "root-certificates": str(self.certificates / "ca.crt"),
            "auth-supernode-private-key": str(self.certificates / f"node-{number}"),
            "port": str(free_port()),
            "node-config": f"partition-id={number} num-partitions={of} {config}".strip(),
        } | {key.replace("_", "-"): value for key, value in more.items()}
        command = [*wrapper, program("flower-supernode")]
        command += [
            part
            for key, value in options.items()
            if value
            for part in ([f"--{key}"] if value == "yes" else [f"--{key}", value])
        ]
        name = f"node-{number}"
        self.nodes[number] = Program(command, self._home(name), self.folder / name / "node.log")
        return self.nodes[number]

    def restart_node(self, number: int, of: int = 2, config: str = "") -> None:
        """Start a SuperNode again with another node-config; the default has no warm worker.

        A SuperNode that is stopped while it registers keeps its key busy, so the SuperLink's
        answer is waited for.
        """
        if number in self.nodes:
            node = self.nodes[number]
            wait_until(
                lambda: node.process.poll() is not None or "SuperNode ID" in node.text(),
                120, f"SuperNode {number}",
            )  # fmt: skip
            node.stop()
        self.start_node(number, of, config)

    def flwr(self, *arguments: str, check: bool = True, timeout: float = 400) -> str:
        """Run one `flwr` command as the user and return what it printed."""
        done = subprocess.run(
            [program("flwr"), *arguments], env=self.user, capture_output=True, text=True,
            timeout=timeout, check=False, cwd=self.folder,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def preset(self, name: str, **changes: Any) -> Path:
        """Write the configuration of a run; `name` is its run directory's."""
        values = QUICK | {"num-clients": 2, "output-dir": str(self.folder / "runs")}
        values |= {"run-name": name} | {k.replace("_", "-"): v for k, v in changes.items()}
        file = self.folder / f"{name}.toml"
        file.write_text(tomli_w.dumps(values))
        return file

    def start_run(self, name: str, **changes: Any) -> Program:
        """Start `flwr run --stream` and return at once; its log is the run's."""
        preset = self.preset(name, **changes)
        command = [program("flwr"), "run", str(ROOT), "tls", "-c", str(preset), "--stream"]
        return Program(command, self.user, self.folder / f"{name}.log")

    def run(self, name: str, **changes: Any) -> str:
        """Train to the end and return the log."""
        started = self.start_run(name, **changes)
        try:
            started.process.wait(500)
        finally:
            started.stop()
        return started.text()

    def directory(self, name: str) -> Path:
        return self.folder / "runs" / name

    def rows(self, name: str) -> list[dict[str, Any]]:
        file = self.directory(name) / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def summary(self, name: str) -> dict[str, Any]:
        return json.loads((self.directory(name) / "summary.json").read_text())

    def status(self) -> str:
        """Return the status of the newest run."""
        runs = json.loads(self.flwr("ls", "tls", "--format", "json"))["runs"]
        return runs[0]["status"]

    def wait_for_training(self, number: int, messages: int = 1) -> None:
        """Wait until a SuperNode has its n-th message to train, and half a second more."""
        text = "Receiving: train message"
        wait_until(lambda: self.nodes[number].text().count(text) >= messages, 300, text)
        time.sleep(0.5)

    def wait_for_round(self, name: str, number: int, seconds: float = 400) -> None:
        wait_until(lambda: len(self.rows(name)) >= number, seconds, f"round {number} of {name}")

    def stop(self) -> None:
        for node in self.nodes.values():
            node.stop()
        if hasattr(self, "superlink"):
            self.superlink.stop()
