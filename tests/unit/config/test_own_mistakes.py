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


def test_a_tensor_that_numpy_cannot_read_is_named(named, tmp_path):
    body = "return {n: torch.from_numpy(a).requires_grad_() for n, a in mean.items()}"
    content = "import torch\n" + STRATEGY.format(arguments="received, mean", body=body)
    found = mistake(named, tmp_path, content, method="bad")
    assert "as Tensor, which NumPy cannot read" in found
    assert found.endswith("return NumPy arrays")


def test_a_number_of_the_method_that_cannot_be_written_loses_no_round(named, tmp_path):
    content = STRATEGY.format(arguments="received, mean", body="return mean")
    late = (
        "    def round_metrics(self):\n        return {'x': 1 if self.server_round == 1 else None}"
    )
    named(content.replace("METHODS[", f"{late}\nMETHODS["))
    assert extensions._add_files()[1] is None
    run = settings(output_dir=str(tmp_path), run_name="bad", num_rounds=3, method="bad")
    with pytest.raises(UserError, match="the metric 'x' of Own is None, not a number"):
        train(InProcessGrid(run), run, "", 0.0)
    directory = RunDirectory.load(tmp_path / "bad")
    assert [row.get("x") for row in directory.rounds()] == [1, None]
    assert directory.summary()["status"] == "failed"
    assert directory.model_path.exists()


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
        ("{'own': {'x': [[1.0], [1.0, 2.0]]}}", "{'own': {'x': [[1.0], [1.0, 2.0]]}}"),
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


FITTING = """from functools import cached_property
from fedapp.methods import METHODS, ClientSpec, Method
from clients.base import LocalClient
from clients.fednova import FedNovaClient
class First(LocalClient):
    def helper(self, x, y):
        return x + y
class Second(First):
    def helper(self, x):
        return x
    @staticmethod
    def finish(received, update, lr):
        pass
METHODS["bad"] = Method("", "", client=ClientSpec(Second))
"""


def test_only_functions_that_fedapp_calls_need_its_arguments(named):
    named(FITTING)
    assert extensions._add_files()[1] is None


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (
            "class Third(LocalClient):\n    def stored_state(self): return {}\n"
            "METHODS['bad'] = Method('', '', client=ClientSpec(Third))",
            "client Third has a function stored_state(), but stored_state is a value of",
        ),
        (
            "from fedapp.methods import LossSpec\nMETHODS['bad'] = Method('', '', "
            "client=ClientSpec(FedNovaClient, options={'correction': 'fednova-correction'}), "
            "loss=LossSpec(regulariser='prox', combine='add', weight='mu'))",
            "the regulariser 'prox' does not fit the client FedNovaClient",
        ),
    ],
)
def test_a_class_or_row_that_cannot_work_is_named(named, row, sentence):
    named(FITTING + row)
    assert sentence in str(extensions._add_files()[1])
