"""FedETF's fine-tuning: turns that train the head's fixed rows and the layer before them."""

import pytest
import torch
from in_process import InProcessGrid, federate, settings

from fedapp import server_app
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.runtime.process.context import ProcessContext
from fedapp.trained_models.personalise import personalise

ETF = {"method": "fedetf-ft", "finetune_protocol": "fedetf", "bottleneck": 12}


def test_fedetf_trains_the_rows_and_the_layer_before_them_in_turn():
    """A local update of all but the rows, then turns of plain cross-entropy, written out."""
    run = settings(**ETF, finetune_turns=2, finetune_lr=0.02, fedetf_scale_init=4.0)
    process = ProcessContext(parse_config(run))
    client = process.client(3)
    client.evaluate(client.get_parameters({}), {"server_round": 2, "lr": 0.1})
    model, epoch = process.new_model(), client.data.tuning(2)
    rows, layer = model.head.weight, list(model.bottleneck.parameters())
    whole = [parameter for parameter in model.parameters() if parameter is not rows]
    counts = process.data._class_counts[3].clamp(min=1)

    def train(parameters, epochs, prior, lr, **more):
        for parameter in model.parameters():
            parameter.requires_grad_(any(parameter is one for one in parameters))
        optimiser = torch.optim.SGD(parameters, lr, fused=True, **more)
        for _ in range(epochs):
            for images, labels in epoch():
                optimiser.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(images)[1] + prior, labels)
                loss.backward()
                optimiser.step()

    momentum = {"momentum": 0.9, "weight_decay": 1e-5}
    train(whole, 1, counts.log(), 0.02, **momentum)
    for _ in range(2):
        train([rows], 3, 0.0, 0.1)
        train(layer, 3, 0.0, 0.05, **momentum)
    for name, own in client.model.state_dict().items():
        torch.testing.assert_close(own, model.state_dict()[name], msg=name)
    before = process.new_model().state_dict()
    changed = {n for n, t in client.model.state_dict().items() if not torch.equal(t, before[n])}
    assert changed == set(before)  # the scale and the rows too
    assert torch.equal(process.model.head.weight, before["head.weight"])  # of the global model


def test_turns_of_fedetf_are_the_same_on_any_nodes_and_from_a_saved_model(tmp_path):
    run = settings(**ETF, finetune_turns=1, num_rounds=1)
    few, many = (federate(run, nodes=n, seed=n)[1].report.client_accuracy for n in (2, 7))
    assert few == many
    plain = {**ETF, "finetune_protocol": "auto"}
    once = settings(**plain, num_rounds=1, output_dir=str(tmp_path), run_name="plain")
    assert federate(once)[1].report.client_accuracy != few
    server_app.run(InProcessGrid(once, 3), once, "", 0.0)
    overrides = {"finetune-protocol": "fedetf", "finetune-turns": 1}
    result = personalise(tmp_path / "plain", overrides)
    assert result["client_accuracy_mean"] == few["client_accuracy_mean"]
    assert result["finetune-part"] == "alternating"
    again = personalise(tmp_path / "plain", {"finetune-protocol": "feddr+"})
    assert (again["finetune-part"], again["finetune-turns"]) == ("body", 20)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"method": "fedgela-ft", "finetune_protocol": "fedetf", "bottleneck": 64},
            "how FedETF fine-tunes; with method 'fedgela-ft' use 'body'",
        ),
        (
            {"method": "fedetf-ft", "finetune_part": "alternating"},
            "the model has no such layer; set 'bottleneck'",
        ),
        ({**ETF, "finetune_loss": "dr"}, "trains no head, but 'finetune-part' is 'alternating'"),
    ],
)
def test_impossible_turns_are_refused_with_a_reason(keys, words):
    with pytest.raises(UserError, match=words):
        parse_config(settings(**keys))
