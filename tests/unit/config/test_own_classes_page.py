"""Every file of docs/own_classes.md trains by its command; mistakes in classes are explained."""

import re
import subprocess
import sys

import numpy as np
import pytest
from in_process import ROOT, settings, train_one

from fedapp.cli import method_pages
from fedapp.config import extensions
from fedapp.config.paper_settings import GUESS
from fedapp.config.resolve import parse_config, rate_note
from fedapp.core.errors import UserError
from fedapp.methods import METHODS
from fedapp.results.run_directory import RunDirectory
from fedapp.trained_models.personalise import personalise

pytestmark = pytest.mark.usefixtures("few_images")

PAGE = (ROOT / "docs" / "own_classes.md").read_text()
FILES = ["mixup.py", "attention.py", "elastic.py", "amp.py"]
IMPORTS = """import numpy as np
import torch
from clients.base import LocalClient
from fedapp.methods import METHODS, ClientSpec, Exchange, Method, ServerSpec
from strategies.fedavg import FedAvg
"""


def listed(file):
    return re.findall(r"```python\n(.*?)```", PAGE, re.S)[FILES.index(file)]


def add(named, text):
    """Add the method of a file; raises its mistake."""
    named(text)
    if (mistake := extensions._add_files()[1]) is not None:
        raise mistake


def train_mine(named, folder, text, row):
    """Add the method "mine" and train it."""
    add(named, f'{IMPORTS}{text}METHODS["mine"] = Method("", "", {row})\n')
    return train_one(folder, method="mine")


@pytest.mark.parametrize("file", FILES)
def test_the_files_of_the_page_train_by_the_command_of_the_page(tmp_path, file):
    path = tmp_path / file
    path.write_text(listed(file))
    keys = re.search(rf'fedapp run --extension {file} -c "(.*)"', PAGE)[1]
    small = f"num-rounds=3 num-clients=4 shards=5 output-dir='{tmp_path}' run-name='one'"
    options = ["--engine", "in-process", "--nodes", "2", "--extension", str(path)]
    command = [sys.executable, "-m", "fedapp", "run", *options, "-c", keys, "-c", small]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rounds = RunDirectory.load(tmp_path / "one").rounds()
    if file == "attention.py":  # one client's model may count most, so that the loss may rise
        assert 0.25 <= rounds[-1]["largest_share"] <= 1
    else:
        assert rounds[-1]["train_loss"] < rounds[0]["train_loss"]
    if file == "amp.py":
        assert rounds[-1]["client_count"] == 4
        assert rounds[0]["client_bytes_down"] < rounds[1]["client_bytes_down"]


def test_every_function_of_the_tables_exists():
    from clients.base import LocalClient
    from strategies.fedavg import FedAvg

    for title, kind in (("What a client may", LocalClient), ("What a strategy may", FedAvg)):
        table = PAGE.partition(f"## {title}")[2].partition("\n\n| it can use")[0]
        names = re.findall(r"`(\w+)\(", table)
        assert len(names) > 6
        assert [name for name in names if not hasattr(kind, name)] == []


def test_random_numbers_of_a_client_are_those_of_the_run(named, tmp_path):
    text = """
class Noisy(LocalClient):
    def prepare(self, server_round):
        self.start = torch.randn(())

    def finish(self, received, update, lr):
        for name in self.trained:
            noise = torch.randn(update.shared[name].shape) + self.start
            update.shared[name] = update.shared[name] + 1e-3 * noise.numpy()

METHODS["noisy"] = Method("", "", client=ClientSpec(Noisy))
"""
    add(named, IMPORTS + text)
    one, other = (
        train_one(tmp_path / name, method="noisy").model_path.read_bytes() for name in "ab"
    )
    assert one == other


def test_so_are_those_of_its_test_which_knows_the_round(named, tmp_path):
    text = """
class Sampled(LocalClient):
    def scores(self):
        drawn, number = float(torch.rand(())), float(self.server_round)
        return {**super().scores(), "accuracy_drawn": drawn, "accuracy_round": number}
"""
    add(named, f'{IMPORTS}{text}METHODS["sampled"] = Method("", "", client=ClientSpec(Sampled))\n')
    runs = [train_one(tmp_path / n, method="sampled", client_eval_every=1) for n in "ab"]
    one, other = (run.rounds() for run in runs)
    drawn = [row["client_accuracy_drawn_mean"] for row in one]
    assert drawn == [row["client_accuracy_drawn_mean"] for row in other]
    assert drawn[0] != drawn[1]
    assert [row["client_accuracy_round_mean"] for row in one] == [1.0, 2.0]


def test_what_the_server_sends_for_tests_only_is_not_there_after_the_run(named, tmp_path):
    text = """
class Sending(FedAvg):
    def evaluation_extras(self, clients):
        return {"own": {"a": np.ones(3)}}
"""
    row = 'server=ServerSpec(Sending), client=ClientSpec(Kept), exchange=Exchange(keeps="it")'
    kept = "from clients.personal_model import PersonalClient as Kept\n"
    kept += "from fedapp.methods import CLIENT_MEAN\n"
    row += ", accuracy=CLIENT_MEAN"
    add(named, f'{IMPORTS}{kept}{text}METHODS["sending"] = Method("", "", {row})\n')
    run = train_one(tmp_path, method="sending", keep_state=True)
    with pytest.raises(UserError, match=r"\(Sending\) sends clients more than the model"):
        personalise(run.path, {})


def test_a_rule_may_return_another_type_of_numbers(named, tmp_path):
    text = """
class Wide(FedAvg):
    def server_update(self, received, mean):
        return {n: received[n] + np.float64(0.5) * (mean[n] - received[n]) for n in mean}

METHODS["wide"] = Method("", "", server=ServerSpec(Wide))
"""
    add(named, IMPORTS + text)
    rounds = train_one(tmp_path, method="wide").rounds()
    assert rounds[0]["client_bytes_down"] == rounds[1]["client_bytes_down"]


MISTAKES = {
    "metric 'accuracy' of Mine is a field of every round": """
class Mine(FedAvg):
    def server_update(self, received, mean):
        self.report.metrics["accuracy"] = 0.99
        return mean
""",
    "metric 'size' of Mine is 'high', not a number": """
class Mine(FedAvg):
    def server_update(self, received, mean):
        self.report.metrics["size"] = "high"
        return mean
""",
    "update.groups has \\[\\], averaged\\(\\) \\['g'\\]": """
class Mine(FedAvg):
    def averaged(self):
        return {"g": {"a": np.zeros(3)}}
""",
    "Mine needs_models and has no combine": """
class Mine(FedAvg):
    needs_models = True
""",
    "Mine needs_models, and then no groups are averaged": """
class Mine(FedAvg):
    needs_models = True

    def averaged(self):
        return {}

    def combine(self, received, models, weights):
        return received
""",
    "the server Mine has extras\\(self\\) .*line 8.*, but must have extras\\(self, clients\\)": """
class Mine(FedAvg):
    def extras(self):
        return {}
""",
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_in_a_strategy_is_one_sentence(named, tmp_path, message):
    with pytest.raises(UserError, match=message):
        train_mine(named, tmp_path, MISTAKES[message], "server=ServerSpec(Mine)")


CLIENTS = {
    "update.uploads has arrays that the server's rule does not read": """
class Mine(LocalClient):
    def finish(self, received, update, lr):
        update.uploads = {"mine": np.zeros(2)}
""",
    "set update.state in every round, or leave `keeps` out": """
class Mine(LocalClient):
    def finish(self, received, update, lr):
        if self.server_round > 1:
            update.state = {"mine": np.zeros(2)}
""",
    "TypeError: .* \\(arrays that are received, stored or sent are NumPy's": """
class Mine(LocalClient):
    def finish(self, received, update, lr):
        update.shared = {n: update.shared[n] - t for n, t in self.trained.items()}
""",
    "client Mine has gradients\\(self, step\\) .*, but must have .*\\(self, forward, objective": """
class Mine(LocalClient):
    def gradients(self, step):
        return step
""",
}


@pytest.mark.parametrize("message", CLIENTS)
def test_a_mistake_in_a_client_is_one_sentence(named, tmp_path, message):
    keeps = ', exchange=Exchange(keeps="x")' if "keeps" in message else ""
    with pytest.raises(UserError, match=message):
        train_mine(named, tmp_path, CLIENTS[message], f"client=ClientSpec(Mine){keeps}")


def test_masks_are_refused_with_a_rule_on_single_models(named):
    add(named, listed("attention.py"))
    with pytest.raises(UserError, match=r"secure-aggregation hides all but sums.*Attention"):
        parse_config(settings(method="attention", secure_aggregation="pairwise"))
    assert np.isfinite(parse_config(settings(method="attention")).lr)


def test_no_paper_is_said_to_state_the_rate_of_ones_own_method(named):
    add(named, listed("attention.py"))
    own = {"method": "attention", "dataset": "cifar10", "model": "cnn"}
    note = rate_note(own, parse_config(settings(**own)))
    assert note.startswith("no published learning rate for attention on cifar10 with cnn: 0.01 is")
    rates = method_pages.settings("attention", METHODS["attention"])
    assert {row["rate"] for row in rates} == {GUESS}
    assert GUESS not in {
        row["rate"] for row in method_pages.settings("fedavg", METHODS["fedavg"])[:1]
    }
