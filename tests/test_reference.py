"""Results kept with the paper, what is told of them, and the study at full size that needs no download."""

import json

import pandas as pd
import pytest
import yaml
from paper_fixtures import make

from benchmarks import full_size
from benchmarks.shapes import PUBLISHED
from docs import readme, reference
from reversal.common import files
from reversal.models import dream, llada, network, smdm, tokens
from reversal.paper import costs, write
from reversal.study import configuration

TINY = {"vocab": 600, "width": 16, "layers": 2, "heads": 2, "mlp": 32}


@pytest.fixture
def run(tmp_path):
    """A folder of results with what three jobs cost, and its configuration."""
    results = tmp_path / "results"
    given = make(results)
    write.numbers_file(given.sources, given.sources_output, **given.numbers_params)
    files.write_table(measured(results), results / "tables/costs.csv")
    return results, given.config


def measured(results):
    """The table of three jobs' costs: one used a GPU, one told nothing of itself; and of a job nobody measured."""
    jobs = {"finetune/mdm/seed_1": 8.0, "finetune/ar/seed_1": 5.0, "symmetry": 3.0}
    for job, seconds in jobs.items():
        file = results / f"benchmarks/{job}.tsv"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"s\tmax_rss\tcpu_time\n{seconds}\t2048.0\t{seconds / 2}\n")
    (results / "benchmarks/symmetry.tsv").write_text("s\tmax_rss\tcpu_time\n3.0\tNA\tNA\n")  # it was too quick
    (results / "logs/finetune/mdm").mkdir(parents=True)
    lines = ["memory: at most 6.5 GiB", "CPU time: 12.0 s", "GPU memory: at most 24.5 GiB", "GPU time: at most 7.5 s"]
    (results / "logs/finetune/mdm/seed_1.log").write_text("".join(f"12:00:00 {line}\n" for line in lines))
    return costs.table(results, [*jobs, "edit/ar/seed_1"], models=["mdm", "ar"], core_watts=10, gpu_watts=700)


def test_costs_are_what_snakemake_saw_and_jobs_told_and_energy_is_their_time_in_watts(tmp_path):
    found = measured(tmp_path).set_index(["rule", "model"])
    tuned = found.loc["finetune", "mdm"]
    assert (tuned.seconds, tuned.cpu_seconds, tuned.gpu_seconds) == (8.0, 12.0, 7.5)
    assert (tuned.memory_gib, tuned.gpu_gib) == (6.5, 24.5)
    assert tuned.watt_hours == pytest.approx((12.0 * 10 + 7.5 * 700) / 3600, abs=0.005)
    silent = found.loc["finetune", "ar"]
    assert (silent.cpu_seconds, silent.gpu_seconds, silent.memory_gib) == (2.5, 0.0, 2.0) and pd.isna(silent.gpu_gib)
    assert found.loc["symmetry", ""].cpu_seconds == 0
    assert list(found.jobs) == [1, 1, 1, 1] and list(found.measured) == [1, 1, 1, 0]


@pytest.fixture
def kept(tmp_path, run):
    results, config = run
    reference.reference(results, tmp_path / "kept", config=config, commit="abc")
    return tmp_path / "kept"


def test_what_is_kept_says_what_it_was_run_with_and_what_it_cost(kept):
    told = json.loads((kept / "provenance.json").read_text())
    assert told["commit"] == "abc" and {"hardware", "versions", "configuration", "date"} <= set(told)
    table = readme.costs(pd.read_csv(kept / "costs.csv"))
    assert "| fine-tuning | 8 s, 6.5 GiB, 24.5 GiB of the GPU | 5 s, 2.0 GiB |" in table
    assert "| symmetry | 3 s, 0.0 GiB, both models |  |" in table
    half = pd.read_csv(kept / "costs.csv").query("model != 'mdm'")
    assert "| fine-tuning | not measured | 5 s, 2.0 GiB |" in readme.costs(half)
    traces = pd.read_csv(kept / "causal_trace.csv")
    assert len(traces) and set(traces.stage) == {"t1"} and set(traces.score) == {"log_probability"}
    numbers = json.loads((kept / "numbers.json").read_text())
    assert numbers["recall"]["at"]["mdm"]["p2d_reverse"]["estimate"] == pytest.approx(0.9)
    assert "example" not in numbers["study"]


def test_of_a_run_whose_answers_mean_nothing_costs_alone_are_kept_and_told(tmp_path, run, monkeypatch):
    results, config = run
    folder = tmp_path / "kept"
    reference.reference(results, folder, config=config, commit="abc", costs_of="random weights")
    assert {file.name for file in folder.iterdir()} == {"costs.csv", "provenance.json"}
    monkeypatch.setattr(readme, "KEPT", {folder: json.loads((folder / "provenance.json").read_text())})
    monkeypatch.setattr(readme, "RESULTS", tmp_path)
    results.rename(tmp_path / "default")
    told = readme.expenses()
    assert "random weights, on " in told
    assert "| all | 3 | 4.5 minutes | 3.0 minutes | 80 s | 1.5 GiB | 0.5 GiB | 16.0 Wh |" in told
    assert "an estimated 16 Wh" in readme.in_short()
    assert "parameters" not in readme.findings()


def test_the_readme_s_table_has_all_runs_and_sets_only_published_data_beside_smdm(kept, run, tmp_path, monkeypatch):
    monkeypatch.setattr(readme, "KEPT", {kept: json.loads((kept / "provenance.json").read_text())})
    monkeypatch.setattr(readme, "RESULTS", tmp_path)
    run[0].rename(tmp_path / "default")
    told, numbers = readme.findings(), json.loads((kept / "numbers.json").read_text())
    assert "| MDM, 4 steps; this study | 100 (95–100) | 90 (85–95) | 100 (95–100) | 90 (85–95) |" in told
    assert "| AR, token by token; this study | 100 (95–100) | 0 (0–5) | 100 (95–100) | 0 (0–5) |" in told
    assert "million parameters, generated people" in told and numbers["study"]["generated"] and "SMDM" not in told
    numbers["study"] |= {"generated": False, "theirs": True}
    (kept / "numbers.json").write_text(json.dumps(numbers))
    assert "| MDM, 32 steps; SMDM-1028M as published, the same people | 98 | 90 | 43 | 30 |" in readme.findings()


def test_a_study_s_changes_go_into_the_configuration_as_deep_as_they_are(tmp_path):
    (tmp_path / "config.yaml").write_text("a: {b: 1, c: 2}\nd: 3\n")
    (tmp_path / "study.yaml").write_text("a: {c: 4}\n")
    config = reference.configuration(tmp_path / "config.yaml", tmp_path / "study.yaml")
    assert config == {"a": {"b": 1, "c": 4}, "d": 3}


def test_the_study_of_full_size_is_valid_and_its_files_are_whole(root, tmp_path):
    paper = yaml.safe_load((root / "studies/paper.yaml").read_text())
    texts = full_size.sentences(None)
    full_size.write_tokenizer(tmp_path / "tokenizer.json", texts[:50], TINY["vocab"])
    study = full_size.study(full_size.of_full_size(paper, data=None, epochs=1), tmp_path, shape=TINY)
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    config = reference.configuration(root / "config.yaml", tmp_path / "study.yaml")
    assert configuration.complaint(config, ["study.yaml", "config.yaml"]) is None
    for name, started in config["models"].items():
        causal = started["family"] == "autoregressive"
        full_size.write_weights(tmp_path / f"{name}.safetensors", causal=causal, seed=1, shape=TINY)
        smdm.convert(tmp_path / name, causal=causal, **started["lit_gpt"])
        net, tokenizer = network.load(tmp_path / name, device="cpu")
        assert network.is_diffusion(net) != causal and network.vocab(net) == len(tokenizer) == TINY["vocab"]
        assert tokenizer.decode(tokenizer(texts[0])["input_ids"]) == texts[0]


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_a_study_of_a_published_checkpoint_at_full_size_is_valid_and_its_files_are_whole(root, tmp_path, name):
    told = json.loads((root / f"tests/golden/{name}/config.json").read_text())
    full_size.write_checkpoint(tmp_path, name, told=told, most=200_000)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    full_size.write_tokenizer(tmp_path / "tokenizer.json", full_size.sentences(None)[:50], told["vocab_size"], 300)
    config = yaml.safe_load((root / f"studies/{name}.yaml").read_text())
    study = full_size.beside_the_tiny_one(full_size.of_full_size(config, data=None, epochs=1), tmp_path)
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    config = reference.configuration(root / "config.yaml", tmp_path / "study.yaml")
    assert configuration.complaint(config, ["study.yaml", "config.yaml"]) is None
    {"llada": llada, "dream": dream}[name].convert(tmp_path / "base", **config["models"]["mdm"][name])
    net, tokenizer = network.load(tmp_path / "base", device="cpu")
    assert network.mask_id(net) == 311 and len(tokenizer) == network.vocab(net) == 320
    assert set(PUBLISHED[name]) <= set(told) and PUBLISHED[name]["model_type"] == told["model_type"]


def test_the_published_rows_fit_into_the_paper_s_canvas_at_full_size(root, shared, tmp_path):
    data = shared / "data/reversal_curse/june_version_7921032488"
    texts = full_size.sentences(data)
    full_size.write_tokenizer(tmp_path / "tokenizer.json", texts, 8000)
    tokenizer = tokens.read_tokenizer(tmp_path / "tokenizer.json", tokens.EOS)
    canvas = yaml.safe_load((root / "studies/paper.yaml").read_text())["sampling"]["canvas"]
    assert max(map(len, tokenizer(texts)["input_ids"])) < canvas
