"""Reference runs, the README and the page of costs, and the study at full size that needs no download."""

import json

import pandas as pd
import pytest
import yaml
from paper_fixtures import make

from benchmarks import full_size
from benchmarks.shapes import PUBLISHED
from docs import readme, reference
from reversal.common import files
from reversal.models import layouts, network, smdm, tokens
from reversal.paper import costs
from reversal.study import configuration

TINY = {"vocab": 600, "width": 16, "layers": 2, "heads": 2, "mlp": 32}


@pytest.fixture
def run(tmp_path):
    """The results of a default study with the costs of three jobs, and its configuration."""
    results = tmp_path / "default"
    config = make(results).params["config"]
    files.write_table(measured(results), results / "tables/costs.csv")
    return results, config


def measured(results):
    """The table of three jobs' costs: one used a GPU, one logged nothing."""
    jobs = {"finetune/mdm/seed_1": 8.0, "finetune/ar/seed_1": 5.0, "symmetry": 3.0}
    for job, seconds in jobs.items():
        file = results / f"benchmarks/{job}.tsv"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"s\tmax_rss\tcpu_time\n{seconds}\t2048.0\t{seconds / 2}\n")
    (results / "benchmarks/symmetry.tsv").write_text("s\tmax_rss\tcpu_time\n3.0\tNA\tNA\n")  # it was too quick
    (results / "logs/finetune/mdm").mkdir(parents=True)
    lines = ["memory: at most 6.5 GiB", "CPU time: 12.0 s", "GPU memory: at most 24.5 GiB", "GPU time: at most 7.5 s"]
    (results / "logs/finetune/mdm/seed_1.log").write_text("".join(f"12:00:00 {line}\n" for line in lines))
    return costs.table(results, models=["mdm", "ar"], core_watts=10, gpu_watts=700)


def test_costs_are_those_that_snakemake_and_jobs_measured_and_energy_is_their_time_in_watts(tmp_path):
    found = measured(tmp_path).set_index(["rule", "model"])
    tuned = found.loc["finetune", "mdm"]
    assert (tuned.seconds, tuned.cpu_seconds, tuned.gpu_seconds) == (8.0, 12.0, 7.5)
    assert (tuned.memory_gib, tuned.gpu_gib) == (6.5, 24.5)
    assert tuned.watt_hours == pytest.approx((12.0 * 10 + 7.5 * 700) / 3600, abs=0.005)
    silent = found.loc["finetune", "ar"]
    assert (silent.cpu_seconds, silent.gpu_seconds, silent.memory_gib) == (2.5, 0.0, 2.0) and pd.isna(silent.gpu_gib)
    assert found.loc["symmetry", ""].cpu_seconds == 0
    assert list(found.jobs) == [1, 1, 1]


def test_a_reference_run_has_its_tables_its_costs_and_how_it_was_run(tmp_path, run):
    results, config = run
    folder = tmp_path / "reference"
    reference.store(results, folder, config=config, commit="abc")
    made = json.loads((folder / "provenance.json").read_text())
    assert made["commit"] == "abc" and {"hardware", "versions", "configuration", "date"} <= set(made)
    assert made["models"] == {"mdm": "diffusion", "ar": "autoregressive"} and made["data"] == "generated"
    in_results = {file.stem for file in results.glob("tables/*.csv")}
    assert {file.stem for file in folder.glob("*.csv")} == {*reference.TABLES} & in_results
    traces = pd.read_csv(folder / "causal_trace.csv")
    assert len(traces) and set(traces.stage) == {"t1"}
    assert set(traces.score) == {"log_probability", "sequential"}
    assert set(traces[traces.score == "sequential"].kind) == {"total"}
    reference.store(results, folder, config=config, tables=("costs",), commit="abc", study="random weights")
    assert {file.name for file in folder.iterdir()} == {"costs.csv", "provenance.json"}


def test_the_page_of_costs_has_stages_rules_and_reference_runs(tmp_path, run, monkeypatch):
    results, config = run
    costs = pd.read_csv(results / "tables/costs.csv")
    reference.store(
        results, tmp_path / "reference/random", config=config, tables=("costs",), commit="abc", study="random weights"
    )
    monkeypatch.setattr(readme, "REFERENCE", tmp_path / "reference")
    page = readme.write_costs_page(costs)
    assert "| fine-tuning | 8 s, 6.5 GiB, 24.5 GiB of the GPU | 5 s, 2.0 GiB |" in page
    assert "| symmetry | 3 s, 0.0 GiB, both models |  |" in page
    assert "random weights, on " in page and "| all | 3 | 16 s | 14 s | 7.5 s | 6.5 GiB | 1.5 Wh |" in page
    assert "at most 6.5 GiB of memory a job, and an estimated 2 Wh" in readme.summarize_costs(costs)
    assert "| fine-tuning | not measured | 5 s, 2.0 GiB |" in readme.summarize_stages(costs.query("model != 'mdm'"))


def test_a_number_of_the_readme_is_replaced_by_that_of_its_reference_run():
    stale = "recalls 1%<!-- mdm_names_reverse --> of names; (2%<!-- no_such_number -->) <!-- picture -->"
    fresh = "recalls 97%<!-- mdm_names_reverse --> of names; (2%<!-- no_such_number -->) <!-- picture -->"
    assert readme.fill_numbers(stale) == fresh == readme.fill_numbers(fresh)
    assert readme.replace_between("a <!-- x -->old<!-- /x --> b", "x", "new") == "a <!-- x -->\nnew\n<!-- /x --> b"


def test_a_study_s_changes_go_into_the_configuration_as_deep_as_they_are(tmp_path):
    (tmp_path / "config.yaml").write_text("a: {b: 1, c: 2}\nd: 3\n")
    (tmp_path / "study.yaml").write_text("a: {c: 4}\n")
    config = reference.load_configuration(tmp_path / "config.yaml", tmp_path / "study.yaml")
    assert config == {"a": {"b": 1, "c": 4}, "d": 3}


def test_the_study_of_full_size_is_valid_and_its_files_are_whole(root, tmp_path):
    paper = yaml.safe_load((root / "studies/paper.yaml").read_text())
    texts = full_size.sentences(None)
    full_size.write_tokenizer(tmp_path / "tokenizer.json", texts[:50], TINY["vocab"])
    study = full_size.use_local_files(full_size.full_size_study(paper, data=None, epochs=1), tmp_path, shape=TINY)
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    config = reference.load_configuration(root / "config.yaml", tmp_path / "study.yaml")
    assert configuration.find_error(config, ["study.yaml", "config.yaml"]) is None
    for name, started in config["models"].items():
        causal = started["family"] == "autoregressive"
        full_size.write_weights(tmp_path / f"{name}.safetensors", causal=causal, seed=1, shape=TINY)
        smdm.convert(tmp_path / name, causal=causal, **started["lit_gpt"])
        net, tokenizer = network.load(tmp_path / name, device="cpu")
        assert network.is_diffusion(net) != causal and network.vocab(net) == len(tokenizer) == TINY["vocab"]
        assert tokenizer.decode(tokenizer(texts[0])["input_ids"]) == texts[0]


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_a_study_of_a_published_checkpoint_at_full_size_is_valid_and_its_files_are_whole(root, tmp_path, name):
    shape = json.loads((root / f"tests/golden/{name}/config.json").read_text())
    full_size.write_checkpoint(tmp_path, shape, file_size=200_000)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    full_size.write_tokenizer(tmp_path / "tokenizer.json", full_size.sentences(None)[:50], shape["vocab_size"], 300)
    config = yaml.safe_load((root / f"studies/{name}.yaml").read_text())
    study = full_size.use_checkpoint(full_size.full_size_study(config, data=None, epochs=1), tmp_path)
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    config = reference.load_configuration(root / "config.yaml", tmp_path / "study.yaml")
    assert configuration.find_error(config, ["study.yaml", "config.yaml"]) is None
    layouts.convert(tmp_path / "base", **config["models"]["mdm"]["checkpoint"])
    net, tokenizer = network.load(tmp_path / "base", device="cpu")
    assert network.mask_id(net) == 311 and len(tokenizer) == network.vocab(net) == 320
    assert set(PUBLISHED[name]) <= set(shape) and PUBLISHED[name]["model_type"] == shape["model_type"]


def test_the_published_rows_fit_into_the_paper_s_canvas_at_full_size(root, shared, tmp_path):
    data = shared / "data/reversal_curse/june_version_7921032488"
    texts = full_size.sentences(data)
    full_size.write_tokenizer(tmp_path / "tokenizer.json", texts, 8000)
    tokenizer = tokens.read_tokenizer(tmp_path / "tokenizer.json", tokens.EOS)
    canvas = yaml.safe_load((root / "studies/paper.yaml").read_text())["sampling"]["canvas"]
    assert max(map(len, tokenizer(texts)["input_ids"])) < canvas
