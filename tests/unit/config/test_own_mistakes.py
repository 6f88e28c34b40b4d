"""An error in code of the user's own is one sentence with its file and line, wherever it is."""

import pytest
from in_process import settings

from fedapp.config import extensions
from fedapp.core.errors import UserError
from fedapp.engines.in_process import InProcessGrid
from fedapp.results.run_directory import RunDirectory
from fedapp.server_app import run as train

STRATEGY = """from fedapp.methods import METHODS, Method, ServerSpec
from strategies.fedavg import FedAvg
class Own(FedAvg):
    def server_update(self, {arguments}):
        {body}
METHODS["bad"] = Method("", "", server=ServerSpec(Own))
"""
CLIENT = """from fedapp.methods import METHODS, ClientSpec, Method
from clients.base import LocalClient
class Own(LocalClient):
    def finish(self, received, update):
        pass
METHODS["bad"] = Method("", "", client=ClientSpec(Own))
"""
NETWORK = """from torch import nn
from fedapp.models.backbones import BACKBONES, BackboneInfo
def own({arguments}):
    return nn.Sequential(nn.AdaptiveAvgPool2d(8), nn.Flatten())
BACKBONES["own"] = BackboneInfo(own, {width}, has_batch_norm=False)
"""


def mistake(named, tmp_path, content, **changes) -> str:
    """Return the sentence that ends a run with a file of this content."""
    named(content)
    assert extensions._add_files()[1] is None
    run = settings(output_dir=str(tmp_path), run_name="bad", num_rounds=1, **changes)
    with pytest.raises(UserError) as error:
        train(InProcessGrid(run), run, "", 0.0)
    return str(error.value)


def test_an_error_in_an_own_aggregation_fails_the_run(named, tmp_path):
    content = STRATEGY.format(arguments="received, mean", body="return 1 / 0")
    found = mistake(named, tmp_path, content, method="bad")
    assert found.endswith("mine.py line 5: ZeroDivisionError: division by zero")
    summary = RunDirectory.load(tmp_path / "bad").summary()
    assert (summary["status"], summary["reason"]) == ("failed", found)


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "SystemExit"])
def test_an_interruption_in_own_code_is_an_interruption(named, tmp_path, error):
    named(STRATEGY.format(arguments="received, mean", body=f"raise {error}"))
    assert extensions._add_files()[1] is None
    run = settings(output_dir=str(tmp_path), run_name="bad", num_rounds=1, method="bad")
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        train(InProcessGrid(run), run, "", 0.0)
    assert RunDirectory.load(tmp_path / "bad").summary()["status"] == "interrupted"


def test_a_wrong_signature_names_the_line_of_the_function(named):
    named(STRATEGY.format(arguments="mean", body="return mean"))
    found = str(extensions._add_files()[1])
    assert "server Own has server_update(self, mean) (mine.py line 4), but must have" in found


def test_so_it_does_on_a_client(named):
    named(CLIENT)
    found = str(extensions._add_files()[1])
    assert "client Own has finish(self, received, update) (mine.py line 4), but must have" in found
    assert "finish(self, received, update, lr)" in found


def test_so_it_does_in_a_network(named, tmp_path):
    content = NETWORK.format(arguments="channels", width=64)
    found = mistake(named, tmp_path, content, method="fedavg", model="own")
    assert "mine.py line 3: TypeError: own() takes 1 positional argument" in found


def test_a_network_with_another_number_of_features_is_explained(named, tmp_path):
    content = NETWORK.format(arguments="*sizes", width=128)
    found = mistake(named, tmp_path, content, method="fedavg", model="own")
    assert found == (
        "model 'own' maps two images to features of shape [2, 64], but its BackboneInfo has "
        "feature_dim=128, so that it must be [2, 128]"
    )


def test_a_network_that_cannot_take_the_images_is_explained(named, tmp_path):
    network = NETWORK.replace("nn.Flatten()", "nn.Linear(3, 4)")
    content = network.format(arguments="*sizes", width=64)
    found = mistake(named, tmp_path, content, method="fedavg", model="own")
    assert found.startswith("model 'own' cannot take images of shape [2, 1, 8, 8]: RuntimeError: ")


def test_the_error_of_a_long_traceback_is_kept(named, tmp_path):
    content = CLIENT.replace("update):", "update, lr):").replace("pass", "update.shared['x'] @ 1")
    content = content.replace("from clients.base", "import torch\nfrom clients.base")
    content = content.replace("update.shared['x'] @ 1", "torch.ones(2) @ torch.ones(3)")
    found = mistake(named, tmp_path, content, method="bad")
    assert "RuntimeError" in found.splitlines()[-1]


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        ("None", "None"),
        ("{'own': np.ones(3)}", "{'own': array([1., 1., 1.])}"),
        ("{'own': {'mean': 'high'}}", "{'own': {'mean': 'high'}}"),
        ("{'arrays': {'mean': np.ones(3)}}", "{'arrays': {'mean': array([1., 1., 1.])}}"),
        ("{'own': {3: np.ones(3)}}", "{'own': {3: array([1., 1., 1.])}}"),
    ],
)
def test_what_extras_may_return_is_said(named, tmp_path, returned, shown):
    content = STRATEGY.format(arguments="received, mean", body="return mean")
    extra = f"    def extras(self, clients):\n        return {returned}\nMETHODS"
    content = "import numpy as np\n" + content.replace("METHODS[", f"{extra}[")
    assert mistake(named, tmp_path, content, method="bad") == (
        f"the strategy's extras are {shown}, but must be groups of named arrays, "
        "{'group': {'name': array}}, and no group may be named 'arrays' or 'task'"
    )
    assert RunDirectory.load(tmp_path / "bad").summary()["status"] == "failed"
