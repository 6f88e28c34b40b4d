"""Personal models: sizes as published, K features from every network, heads of four shapes."""

import pytest
import torch
from in_process import settings
from reference import HETEROGENEOUS
from torch import nn

from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.models.architectures import ARCHITECTURES, build_heterogeneous_extractor
from fedapp.models.backbones import build_extractor
from fedapp.models.groups import MODEL_GROUPS, find_group
from fedapp.models.heterogeneous_heads import build_heterogeneous_head

# Extractor parameters in millions at 32x32 with three channels.
PUBLISHED = {
    "fedavgcnn": 0.87, "googlenet": 5.60, "mobilenetv2": 2.22, "resnet18": 11.18,
    "resnet34": 21.28, "resnet50": 23.51, "resnet101": 42.50, "resnet152": 58.14,
}  # fmt: skip
QUICK = ["fedavgcnn", "mixer", "resnet4", "resnet6", "resnet8", "resnet10", "resnet18"]


def personal_of_64(name: str, channels: int, side: int) -> nn.Module:
    return build_heterogeneous_extractor(name, channels, side, 64)


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_are_the_published_ones(name):
    with torch.device("meta"):
        extractor = build_heterogeneous_extractor(name, 3, 32, 512)
    assert parameters(extractor) / 1e6 == pytest.approx(PUBLISHED[name], abs=0.005)


@pytest.mark.parametrize("name", QUICK)
def test_quick_networks_give_k_features_of_any_image(name):
    for feature_dim in (64, 128, 512, 1024):
        extractor = build_heterogeneous_extractor(name, 1, 8, feature_dim).eval()
        assert extractor(torch.rand(2, 1, 8, 8)).shape == (2, feature_dim)


@pytest.mark.parametrize("name", ["googlenet", "mobilenetv2", "mobilenetv2-quarter", "resnet50"])
def test_large_networks_take_grey_images_too(name):
    extractor = build_heterogeneous_extractor(name, 1, 32, 128)
    assert extractor(torch.rand(2, 1, 32, 32)).shape == (2, 128)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_network_takes_the_smallest_images_that_its_row_names(name):
    side = ARCHITECTURES[name].smallest
    with torch.device("meta"):
        extractor = build_heterogeneous_extractor(name, 3, side, 64)
        assert extractor(torch.empty(2, 3, side, side)).shape == (2, 64)


def test_a_model_that_does_not_fit_into_memory_is_refused_before_it_is_built():
    for build, name in ((build_extractor, "cnn"), (personal_of_64, "fedavgcnn")):
        with pytest.raises(UserError, match=rf"images of 20000x20000 .* '{name}' \d+\.\d billion"):
            build(name, 3, 20_000)
    with torch.device("meta"):
        assert parameters(build_extractor("resnet10", 3, 20_000)) < 10e6


def test_images_that_are_too_small_for_a_clients_network_are_refused_before_the_run():
    group = {"method": "feddor", "model_group": "MHMG4", "partition": "dirichlet"}
    with pytest.raises(UserError, match=r"'googlenet' needs images of 15x15 .* not 14 wide"):
        build_heterogeneous_extractor("googlenet", 3, 14, 64)
    with pytest.raises(UserError, match=r"'googlenet' needs images of 15x15 .* not 8 wide"):
        parse_config(settings(**group))
    parse_config(settings(**group, num_clients=1))
    parse_config(settings(**group, dataset="mnist"))


@pytest.mark.parametrize(("side", "inputs"), [(32, 1600), (64, 10816), (28, 1024), (8, 256)])
def test_the_small_cnns_hidden_layer_fits_the_image(side, inputs):
    extractor = build_heterogeneous_extractor("fedavgcnn", 3, side, 512)
    hidden = next(m for m in extractor.modules() if isinstance(m, nn.Linear))
    assert hidden.in_features == inputs


@pytest.mark.parametrize("case", HETEROGENEOUS["adaptive_avg_pool_1d"]["cases"])
def test_pooling_averages_neighbours_or_repeats_them(case):
    from fedapp.models.architectures import _feature_map

    pooled = _feature_map("pool", len(case["x"]), case["out_size"])(torch.tensor([case["x"]]))
    torch.testing.assert_close(pooled, torch.tensor([case["out"]]))


def test_a_linear_feature_map_has_signs():
    extractor = build_heterogeneous_extractor("resnet4", 3, 32, 16, "linear")
    assert (extractor(torch.rand(2, 3, 32, 32)) < 0).any()


@pytest.mark.parametrize("hidden", MODEL_GROUPS["Res34-HtC4"].hidden)
@pytest.mark.parametrize("style", ["linear", "cosine", "normalised-linear"])
def test_heads_of_every_shape_and_style(style, hidden):
    head = build_heterogeneous_head(style, 24, 5, seed=1, hidden=hidden)
    again = build_heterogeneous_head(style, 24, 5, seed=1, hidden=hidden)
    features = torch.randn(3, 24)
    logits = head(features)
    assert logits.shape == (3, 5)
    assert torch.equal(logits, again(features))
    assert (logits < 0).any(), "there is no ReLU after the logits"


def test_a_cosine_head_ignores_the_lengths_of_features_and_rows():
    head = build_heterogeneous_head("cosine", 6, 3, seed=1)
    features = torch.randn(4, 6)
    before = head(features)
    head.weight.data *= 3
    torch.testing.assert_close(head(5 * features), before)
    assert float(before.detach().abs().max()) <= 10.0 + 1e-4


def test_clients_take_architectures_and_heads_in_turn():
    group = find_group("MHMG8-HtC4")
    assert [group.architecture_of(c) for c in (0, 1, 8)] == ["fedavgcnn", "googlenet", "fedavgcnn"]
    assert [group.hidden_of(c) for c in range(5)] == [0, 512, 256, 128, 0]
    assert not group.same_heads
    assert find_group("Res34-HtC4").mentee == "fedavgcnn"
    assert find_group("MHMG9").mentee == "resnet4"
    named = {name for each in MODEL_GROUPS.values() for name in each.architectures}
    assert named == ARCHITECTURES.keys()


def test_the_small_group_is_four_unlike_networks_of_a_fraction_of_the_papers_sizes():
    group = find_group("small")
    assert len(set(group.architectures)) == 4
    with torch.device("meta"):
        built = [build_heterogeneous_extractor(name, 3, 32, 128) for name in group.architectures]
    assert sum(map(parameters, built)) / 1e6 == pytest.approx(2.52, abs=0.005)
    kinds = [{type(module) for module in each.modules()} for each in built]
    norms = [kind & {nn.BatchNorm2d, nn.LayerNorm} for kind in kinds]
    assert norms == [set(), {nn.BatchNorm2d}, {nn.BatchNorm2d}, {nn.LayerNorm}]
    asked = settings(method="feddor", model_group="small", partition="dirichlet")
    assert parse_config({**asked, "feature-dim": "auto"}).feature_dim == 128


def test_a_mixer_sees_the_order_of_patches_and_has_no_negative_features():
    mixer, images = (
        build_heterogeneous_extractor("mixer", 3, 32, 128).eval(),
        torch.rand(2, 3, 32, 32),
    )
    features = mixer(images)
    assert float(features.detach().min()) >= 0.0
    assert not torch.allclose(features, mixer(images.flip(3)))


def test_unknown_names_are_named():
    with pytest.raises(UserError, match="MHMG"):
        find_group("MHMG5")
    with pytest.raises(UserError, match="resnet"):
        build_heterogeneous_extractor("resnet5", 3, 32, 64)
    with pytest.raises(UserError, match="8x8"):
        build_heterogeneous_extractor("resnet4", 3, 7, 64)


def test_the_hidden_layer_and_the_classifier_of_a_head_are_drawn_independently():
    """From one seed, every second value of the first would correlate with the second's."""
    found = []
    for seed in range(20):
        head = build_heterogeneous_head("linear", 256, 100, seed, hidden=256)
        classifier = head.weight.detach().flatten()
        hidden = head.hidden.weight.detach().flatten()[: 2 * len(classifier) : 2]
        found.append(float(torch.corrcoef(torch.stack((classifier, hidden)))[0, 1]))
    assert abs(sum(found) / 20) < 0.01
