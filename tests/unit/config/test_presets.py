"""Presets and settings: every protocol of the papers resolves to the papers' numbers."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clients.training.objective import REGULARISERS
from fedapp.cli import app as cli
from fedapp.config.auto import find_setting
from fedapp.config.overrides import read_overrides
from fedapp.config.paper_settings import BETAS, MODEL_OF, ORDER, SETTINGS
from fedapp.config.presets import preset_path, preset_rows
from fedapp.config.project import default_config
from fedapp.config.resolve import parse_config
from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError
from fedapp.data.datasets import DATASETS
from fedapp.experiments.papers.tables import find_paper

ROOT = Path(__file__).parents[3]
DEFAULTS = default_config(ROOT)
ALONE = {"feddor"}  # protocols for one paper's methods, all with one learning rate
ON_TOP = ("htfllib", "fedorgp-code")  # of a protocol
NAMES = [row["preset"] for row in preset_rows() if row["preset"] not in ON_TOP]


def resolve(*overrides: str) -> RunConfig:
    return parse_config({**DEFAULTS, **read_overrides(list(overrides))})


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_resolves_and_pins_nothing_that_depends_on_the_method(name):
    resolved = resolve(name)
    paper, rest = name.split("-", 1)
    assert resolved.method == paper or rest.startswith("synergy")
    assert rest.startswith((resolved.dataset, "synergy"))
    pinned = read_overrides([name])
    assert "auto" not in (resolved.lr, resolved.beta)
    if paper in ALONE:
        return
    assert not pinned.keys() & {"lr", "beta", "mu", "tau", "seed", "data-dir"}


@pytest.mark.parametrize("name", [name for name in NAMES if name.split("-")[0] not in ALONE])
@pytest.mark.parametrize("method", ["fedavg", "fedprox", "feddr+", "fedfn", "spherefed"])
def test_methods_can_be_changed_on_top_of_a_preset(name, method):
    resolved = resolve(name, f"method='{method}' regulariser='auto'")
    assert resolved.method == method
    row = find_setting(resolved.dataset, resolved.model)
    fedfns = {"spherefed": 4.5} if name.startswith("fedfn-cifar100") else {}
    own = {each: rate.value for each, rate in row.rates.items()}
    assert resolved.lr == {**own, **fedfns}.get(method, row.lr.value)


@pytest.mark.parametrize("method", ["feddor", "fedproto", "fedkd", "lg-fedavg", "local-hetero"])
def test_feddors_presets_have_its_protocol_for_all_its_methods(method):
    for name in (name for name in NAMES if name.startswith("feddor")):
        run = resolve(name, f"method='{method}'")
        assert (run.lr, run.momentum, run.weight_decay, run.batch_size) == (0.01, 0.0, 0.0, 32)
        assert (run.pool_data, run.partition_seed, run.normalisation) == (True, 1, "symmetric")
        assert (run.feature_dim, run.lr_schedule, run.augmentation) == (512, "constant", "none")
        assert (run.num_rounds, run.num_clients, run.model_group) == (100, 20, "MHMG8")


def test_presets_that_go_on_top_of_a_protocol_leave_its_data_as_it_is():
    base = resolve("feddor-cifar100-dirichlet")
    for name in ON_TOP:
        assert not read_overrides([name]).keys() & {"dataset", "partition", "lr", "seed"}
        run = resolve("feddor-cifar100-dirichlet", name)
        protocol = (run.dataset, run.partition, run.num_clients, run.num_rounds, run.model_group)
        assert protocol == ("cifar100", "dirichlet", 20, 100, "MHMG8")
    theirs = resolve("feddor-cifar100-dirichlet", "htfllib")
    assert (theirs.method, theirs.lr, theirs.local_epochs) == ("fedproto", 0.01, 1)
    assert (theirs.batch_size, theirs.drop_last, theirs.local_shuffle) == (10, True, False)
    assert (base.batch_size, base.drop_last, base.local_shuffle) == (32, True, True)
    assert (theirs.fedproto_weighting, theirs.proto_collect) == ("uniform", "during")
    assert theirs.fedproto_lambda == theirs.fedtgp_lambda == base.fedtgp_lambda == 10.0
    assert base.fedproto_lambda == 1.0
    code = resolve("feddor-cifar100-dirichlet", "fedorgp-code")
    assert (code.method, code.batch_size, code.local_shuffle) == ("fedorgp", 32, False)
    assert (code.fedproto_weighting, code.fedtgp_lambda) == ("uniform", 0.1)


def test_presets_have_the_protocols_of_their_papers():
    plus = resolve("feddr+-cifar10-lda")
    assert (plus.lr, plus.beta, plus.local_epochs, plus.num_rounds) == (0.35, 0.9, 10, 320)
    assert (plus.partition, plus.alpha, plus.lr_schedule) == ("lda", 0.1, "step")
    fn = resolve("fedfn-cifar100-shards")
    assert (fn.lr, fn.local_epochs, fn.augmentation) == (0.5, 5, "flip")
    assert resolve("fedfn-cifar100-lda", "method='spherefed-ft'").lr == 4.5
    assert resolve("feddr+-cifar100-lda", "method='spherefed' local-epochs=5").lr == 6.5
    random = resolve("fedfn-cifar10-resnet18")
    assert (random.lr, random.bn, random.model) == (0.1, "running", "resnet18-imagenet-stem")
    assert resolve("fedfn-cifar10-resnet18", "initial-model='imagenet'").model == random.model
    for method, rate in (("local", 0.1), ("local-etf", 0.1), ("local-dr", 5.0)):
        alone = resolve("local-cifar100-shards", f"method='{method}'")
        assert (alone.lr, alone.num_rounds, alone.weight_decay) == (rate, 160, 0.0)
    cinic = resolve("fedntd-cinic10-shards")
    assert (cinic.num_clients, cinic.participation) == (200, 0.05)
    assert cinic.augmentation == find_setting("cinic10", "cnn").augmentation == "crop-reflect flip"
    assert resolve("fedntd-mnist-lda").local_epochs == 3
    photos = resolve("feddr+-imagenet100-shards")
    assert (photos.lr, photos.shards, photos.augmentation) == (1.0, 20, "rrc flip")
    many = resolve("feddr+-cifar100-1000-clients")
    assert (many.num_clients, many.num_rounds, many.lr) == (1000, 1000, 5.0)
    assert [many.lr_at(r) for r in (500, 501, 751)] == pytest.approx([5.0, 0.5, 0.05])
    assert resolve("feddr+-cifar100-stochastic").stochastic_every == 10


def test_fedfns_presets_fine_tune_as_its_table_of_personalised_accuracies():
    [table] = [t for t in find_paper("fedfn").tables if t.id == "appendix-table9-pfl"]
    factors = {row.method: row.column.get("finetune_lr_factor") for row in table.rows}
    tuned = {method: factor for method, factor in factors.items() if factor is not None}
    assert len(tuned) == 5
    for name in (name for name in NAMES if name.startswith("fedfn-")):
        for method, factor in tuned.items():
            run = resolve(name, f"method='{method}'")
            assert (run.finetune_protocol, run.finetune_epochs) == ("fedfn", 5)
            assert run.finetune_lr == pytest.approx(factor * run.lr), (name, method)
    assert resolve("fedfn-cifar100-shards", "method='fedavg'").finetune_epochs == 0
    theirs = resolve("feddr+-cifar100-shards", "method='fedavg-ft'")
    assert (theirs.finetune_protocol, theirs.finetune_lr) == ("feddr+", pytest.approx(0.001))


def test_presets_average_models_as_the_code_did_that_made_their_tables():
    table_3 = re.compile(r"feddr\+-(cifar10|cifar100|imagenet100)-(shards|lda)")
    for name in (name for name in NAMES if name.startswith(("feddr+", "fedfn", "fedntd"))):
        uniform = name.startswith("feddr+") and not table_3.fullmatch(name)
        assert resolve(name).weights == ("uniform" if uniform else "size"), name


def test_presets_test_in_the_batches_of_the_code_that_made_their_tables():
    """FedNTD's code has 50 images per test batch, FedBABU's 128; VGG11 and the CNN have no BN."""
    of_fedntd = re.compile(
        r"feddr\+-(cifar100|imagenet100)-(shards|lda)|fedntd-.*|fedfn-cifar100-.*"
    )
    names = (name for name in NAMES if name.startswith(("feddr+", "fedntd", "fedfn", "local")))
    found = {name: resolve(name) for name in names}
    normalised = {n: run for n, run in found.items() if run.model not in ("vgg11", "cnn")}
    assert {"local-cifar100-shards", "feddr+-imagenet100-lda"} <= normalised.keys()
    for name, run in normalised.items():
        assert run.test_batch_size == (50 if of_fedntd.fullmatch(name) else 128), name


def test_extras_are_those_of_the_paper_that_trains_the_model():
    def of(preset: str, method: str) -> tuple:
        chosen = resolve(preset, f"method='{method}'")
        return chosen.mu, chosen.beta, chosen.tau

    assert of("fedntd-cifar10-shards", "fedprox")[0] == 0.1
    assert of("feddr+-cifar10-shards", "fedprox")[0] == 0.001
    assert of("fedntd-cifar10-shards", "fedntd")[1:] == (1.0, 1.0)
    assert of("feddr+-cifar100-lda", "fedntd")[1:] == (1.0, 3.0)


@pytest.mark.parametrize("partition", BETAS)
@pytest.mark.parametrize("base", BETAS["lda"])
def test_every_pair_of_base_and_regulariser_runs_from_one_preset(partition, base):
    plain = resolve(f"feddr+-synergy-{partition}", f"method='{base}' regulariser='none'")
    assert plain.regulariser == "none"
    for beta, regulariser in zip(BETAS[partition][base], ORDER, strict=True):
        if regulariser not in REGULARISERS:
            continue
        override = f"method='{base}' regulariser='{regulariser}'"
        resolved = resolve(f"feddr+-synergy-{partition}", override)
        assert (resolved.beta, resolved.regulariser) == (beta, regulariser)
        assert resolve(f"feddr+-synergy-{partition}", f"{override} beta=0.9").beta == 0.9


def test_the_tuned_weights_are_the_published_ones():
    """Compare `BETAS` with the paper's table, which the project has as data."""
    paper = json.loads((ROOT / "fedapp/experiments/papers/data/feddr_plus.json").read_text())
    [table] = [t for t in paper["tables"] if t["id"] == "table12-synergy-beta"]
    seen = 0
    for row in table["rows"]:
        base, _, regulariser = row["method"].rpartition("+")
        if "mean" not in row or regulariser not in ORDER:
            continue
        kind = {"shard": "shards", "lda": "lda"}[row["column"]["partition"]["kind"]]
        assert BETAS[kind][base][ORDER.index(regulariser)] == row["mean"], row
        seen += 1
    assert seen == 72


def test_settings_and_presets_cite_the_tables_that_their_rates_are_in():
    protocols = {row["preset"]: row["protocol"] for row in preset_rows()}
    seen = set()
    for entry in find_paper("feddr+").hyperparameters:
        if entry["method"] is None:
            continue
        number = entry["source"].removeprefix("Table ")
        setting = SETTINGS[entry["dataset"], entry["model"]]
        assert f"tables 7 and {number};" in setting.source
        assert setting.rate(entry["method"], ordinary=True).value == entry["lr"]
        for part in ("shards", "lda"):
            cited = protocols[f"feddr+-{entry['dataset']}-{part}"]
            assert f"tables 3, 7 and {number}:" in cited
        seen.add(number)
    assert seen == {"8", "9", "10"}


def test_tuned_weights_are_for_their_data_set_and_model_only():
    chosen = {"method": "fedavg", "regulariser": "ntd", "num-clients": 10}
    elsewhere = parse_config({**DEFAULTS, **chosen, "dataset": "cifar10"})
    assert (elsewhere.beta, elsewhere.tau) == (0.9, 3.0)


def test_every_data_set_with_a_model_of_its_own_has_a_setting():
    missing = {pair for pair in MODEL_OF.items() if pair not in SETTINGS}
    assert not missing
    assert all(setting.source for setting in SETTINGS.values())


def test_presets_are_listed_and_found_by_name_alone(tmp_path, monkeypatch):
    done = CliRunner().invoke(cli.app, ["presets", "--json"])
    assert done.exit_code == 0, done.output
    listed = {row["preset"]: row["protocol"] for row in json.loads(done.stdout)}
    assert list(listed) == sorted([*NAMES, *ON_TOP])
    assert listed["fedntd-cifar10-shards"].startswith("FedNTD (Lee et al. 2022), table 1")
    monkeypatch.chdir(tmp_path)
    assert read_overrides(["fedntd-cifar10-shards"])["method"] == "fedntd"
    assert preset_path("../presets/fedntd-cifar10-shards") is None
    pairs = {f"key-{number}": "x" * 20 for number in range(20)}  # longer than any file's name
    assert read_overrides([" ".join(f"{key}='{text}'" for key, text in pairs.items())]) == pairs
    with pytest.raises(UserError, match="-c 'fedntd-cifar10' is neither a preset"):
        read_overrides(["fedntd-cifar10"])


def test_a_packages_photos_start_on_defaults(monkeypatch):
    monkeypatch.setitem(DATASETS, "my-photos", DATASETS["imagenet100"])
    mine = parse_config({**DEFAULTS, "dataset": "my-photos", "shards": 20})
    assert (mine.augmentation, mine.model, mine.lr) == ("rrc flip", "resnet18", 1.0)
