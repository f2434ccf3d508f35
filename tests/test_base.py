"""Each kind of model to start from; the hub is a server on 127.0.0.1."""

import hashlib
import json
import re
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub
import input_fixtures
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from reversal.common.errors import UserError
from reversal.data import facts, generated
from reversal.models import folders, layouts, network, smdm, tokens
from reversal.models import hub as pins
from reversal.training import bases, pretraining

GOLDEN = Path(__file__).parent / "golden/smdm"
NETWORK = {"width": 32, "layers": 2, "heads": 2, "mlp": 64, "context": 64, "vocabulary": 500}
RECIPE = {"epochs": 1, "batch": 16, "learning_rate": 0.003, "warmup_steps": 2}
COMMIT = "1" * 40


def sha256(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_the_bundled_bases_are_what_their_readme_says(root):
    readme = (root / "data/base/README.md").read_text()
    for name, causal in (("mdm", False), ("ar", True)):
        net, _ = network.load(root / "data/base" / name, device="cpu")
        assert network.is_diffusion(net) is not causal
        assert sha256(root / "data/base" / name / "model.safetensors") in readme
    first, second = (sha256(root / f"data/base/{name}/tokenizer.json") for name in ("mdm", "ar"))
    assert first == second


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"causal": True},
            r"config\.json is a diffusion model's, by its mask_token_id; the configuration says auto",
        ),
        ({"without": "tokenizer.json"}, r"no tokenizer\.json; a base needs its tokenizer"),
        ({"without": "model.safetensors"}, r"no \*\.safetensors; weights in other formats are never loaded"),
    ],
)
def test_a_folder_that_cannot_be_a_base_of_this_family_is_rejected(root, tmp_path, change, message):
    shutil.copytree(root / "data/base/mdm", tmp_path / "net")
    if "without" in change:
        (tmp_path / "net" / change["without"]).unlink()
        (tmp_path / "net/checksums.json").unlink()
    with pytest.raises(UserError, match=message):
        folders.copy(tmp_path / "net", tmp_path / "base", causal=change.get("causal", False))


def test_scratch_makes_a_network_for_the_training_rows(generated, tmp_path):
    facts.write(generated[1][:200], tmp_path / "train.jsonl")
    bases.from_scratch(tmp_path / "train.jsonl", tmp_path / "base", causal=False, shape=NETWORK, seed=0)
    net, tokenizer = network.load(tmp_path / "base", device="cpu")
    assert network.is_diffusion(net) and network.vocab(net) == len(tokenizer) <= 500


def pretrained(folder, root, **changes):
    rows = changes.pop("vocabulary_of", None)
    options = {"causal": True, "shape": NETWORK, "recipe": RECIPE, "checkpoints": folder / "checkpoints"} | changes
    text = pretraining.Biographies(root / "data/words", root / "data/templates", people=20, rows=160, seed=0)
    folder.mkdir()
    pretraining.make_tokenizer(folder / "tokenizer", text, size=NETWORK["vocabulary"], vocabulary_of=rows)
    options["tokenizer_folder"] = folder / "tokenizer"
    pretraining.pretrain(folder / "base", folder / "history.csv", text, **options)
    return network.load(folder / "base", device="cpu")


def test_pretraining_twice_gives_the_same_base(root, tmp_path):
    (first, _), (second, _) = (pretrained(tmp_path / name, root) for name in ("one", "two"))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not (tmp_path / "one/checkpoints").exists()


def test_a_tokenizer_covers_the_words_of_rows_that_the_network_never_sees(root, tmp_path):
    row = facts.Row("p2d-00", 0, "Zyzzyva Quillfeather wove", " an ultramarine gonfalon.", (0, 20), (1, 24))
    facts.write([row] * 30, tmp_path / "train.jsonl")
    (_, without), (_, covering) = (
        pretrained(tmp_path / name, root, vocabulary_of=file)
        for name, file in (("one", None), ("two", tmp_path / "train.jsonl"))
    )
    name = " Quillfeather"
    assert len(covering(name)["input_ids"]) == 1 < len(without(name)["input_ids"])


def test_the_text_of_the_bundled_bases_can_still_be_generated(root, words):
    """The hash in the README is that of a million sentences; the first thousand are enough to notice a change."""
    templates = {
        d: generated.read_templates(root / f"data/templates/pretraining_{d}.txt", answer_type=a)
        for d, a in generated.DIRECTIONS.items()
    }
    texts = list(generated.make_biographies(words, templates, people_count=1000, rows=1000, seed=0))
    assert pretraining.digest(texts) == "76de2c60a3c478dacd4ab126a3b513a5adeb90d6e2bb904d36491b24168ae18a"


@pytest.fixture
def golden_tokenizer(tmp_path):
    """A tokenizer of as many tokens as the golden networks have."""
    reader = tokens.train_tokenizer([f"word{i} " * 3 for i in range(200)], 320)
    reader.add_tokens([f"<filler{i}>" for i in range(320 - len(reader))])
    reader.save_pretrained(tmp_path / "reader")
    return tmp_path / "reader"


@pytest.mark.parametrize("name, causal", [("mdm", False), ("ar", True)])
def test_an_smdm_checkpoint_becomes_a_base(name, causal, golden_tokenizer, tmp_path):
    weights = {"path": str(GOLDEN / f"{name}.safetensors"), "sha256": sha256(GOLDEN / f"{name}.safetensors")}
    source = {"weights": weights, "tokenizer": {"path": str(golden_tokenizer / "tokenizer.json")}, "n_head": 4}
    source["eos_token"] = tokens.EOS
    smdm.convert(tmp_path / "base", causal=causal, **source)
    net, tokenizer = network.load(tmp_path / "base", device="cpu")
    assert network.vocab(net) == len(tokenizer) == 320 and net.config.rounded_rope


class Hub(BaseHTTPRequestHandler):
    """What a download needs of a model hub; it closes the connection `cut` bytes into a file's first transfer."""

    files, ranges, cut = {}, [], None

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        if self.path.startswith("/api/models/owner/model"):
            return self.describe()
        match = re.fullmatch(rf"/owner/model/resolve/{COMMIT}/(.+)", self.path)
        content = self.files.get(match[1]) if match else None
        if content is None:
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        start = int(re.match(r"bytes=(\d+)-", self.headers.get("Range", "bytes=0-"))[1])
        if body:
            self.ranges.append(start)
        self.send_response(206 if start else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if body:
            end = len(content) if start or Hub.cut is None else Hub.cut
            self.wfile.write(content[start:end])
            self.wfile.flush()
            if end < len(content):
                self.connection.close()

    def describe(self):
        """The hub knows the hashes of large files only."""
        listed = [{"rfilename": name} | self.large(content) for name, content in self.files.items()]
        answer = json.dumps({"id": "owner/model", "sha": COMMIT, "siblings": listed}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    @staticmethod
    def large(content):
        if len(content) < 1000:
            return {}
        return {"lfs": {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 100}}

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The options that direct a download to a hub on 127.0.0.1."""
    monkeypatch.setattr(Hub, "files", {})
    monkeypatch.setattr(Hub, "ranges", [])
    monkeypatch.setattr(Hub, "cut", None)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield {"cache": str(tmp_path / "cache"), "endpoint": f"http://127.0.0.1:{server.server_port}"}
    server.shutdown()
    server.server_close()


def test_a_causal_model_of_another_architecture_comes_from_the_hub(hub, tokenizer, tmp_path):
    theirs = GPT2LMHeadModel(
        GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=len(tokenizer), n_positions=64)
    ).eval()
    theirs.save_pretrained(tmp_path / "gpt")
    tokenizer.save_pretrained(tmp_path / "gpt")
    Hub.files.update({file.name: file.read_bytes() for file in (tmp_path / "gpt").iterdir()})
    files = {name: hashlib.sha256(content).hexdigest() for name, content in Hub.files.items()}
    bases.from_hub(tmp_path / "base", repo="owner/model", revision=COMMIT, files=files, **hub)
    net, reader = network.load(tmp_path / "base", device="cpu")
    ids = torch.tensor([reader("Ada is")["input_ids"]])
    torch.testing.assert_close(net(input_ids=ids).logits, theirs(input_ids=ids).logits)


def test_a_broken_transfer_is_resumed(hub):
    content = bytes(range(256)) * 100_000
    Hub.files["model.safetensors"] = content
    Hub.cut = 22_000_000  # downloads are written in pieces of 10 MB
    path = pins.fetch("owner/model", "model.safetensors", COMMIT, hashlib.sha256(content).hexdigest(), **hub)
    assert path.read_bytes() == content
    assert len(Hub.ranges) == 2 and 0 < Hub.ranges[1] <= 22_000_000


@pytest.mark.parametrize("how", ["endpoint", "environment"])
def test_the_hub_is_accessed_over_https_only(hub, monkeypatch, how):
    """The user's token for the hub would be sent along."""
    Hub.files["model.safetensors"] = b"x"
    insecure = hub["endpoint"].replace("127.0.0.1", "localhost")
    if how == "environment":
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", insecure)
    where = hub | {"endpoint": insecure if how == "endpoint" else None}
    with pytest.raises(UserError, match="refused; files are downloaded over https only"):
        pins.fetch("owner/model", "model.safetensors", COMMIT, "a" * 64, **where)
    with pytest.raises(UserError, match="refused; files are downloaded over https only"):
        pins.pin({"repo": "owner/model", "revision": "unpinned", "file": "x", "sha256": "unpinned"}, **where)
    assert not Hub.ranges


def test_an_error_of_the_hub_is_reported_without_the_token(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_canary")
    message = "403: see https://user:hf_canary@cdn.example.org/x?Signature=hf_canary&Key=1 for more"
    monkeypatch.setattr(pins, "hf_hub_download", lambda *_, **__: (_ for _ in ()).throw(OSError(message)))
    with pytest.raises(network.ModelError, match=r"OSError: 403: see https://cdn\.example\.org/x for more") as caught:
        pins.fetch("owner/model", "model.safetensors", COMMIT, "a" * 64, **hub)
    assert "canary" not in str(caught.value)


def test_a_hub_model_without_a_tokenizer_is_rejected(hub, tmp_path):
    GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=40)).save_pretrained(tmp_path / "gpt")
    Hub.files.update({file.name: file.read_bytes() for file in (tmp_path / "gpt").iterdir()})
    files = {name: hashlib.sha256(content).hexdigest() for name, content in Hub.files.items()}
    with pytest.raises(network.ModelError, match=r"owner/model: tokenizer\.json is not among its files"):
        bases.from_hub(tmp_path / "base", repo="owner/model", revision=COMMIT, files=files, **hub)


def test_a_missing_file_of_the_hub_is_named(hub):
    with pytest.raises(
        network.ModelError, match=r"owner/model/absent\.safetensors at 1+ could not be fetched"
    ) as caught:
        pins.fetch("owner/model", "absent.safetensors", COMMIT, "a" * 64, **hub)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.pt", "x.pkl"])
def test_pickled_weights_are_never_fetched(hub, name):
    with pytest.raises(network.ModelError, match=r"from \.safetensors only"):
        pins.fetch("owner/model", name, COMMIT, "a" * 64, **hub)
    assert not Hub.ranges


def test_pins_come_from_the_hub_and_a_hash_in_the_study_is_kept(hub):
    Hub.files = {"large.safetensors": bytes(5000), "tokenizer.json": b"{}"}
    source = {"repo": "owner/model", "revision": "unpinned", "sha256": "unpinned"}
    study = {
        "models": {
            "mdm": {
                "lit_gpt": {
                    "weights": {**source, "file": "large.safetensors"},
                    "tokenizer": {**source, "file": "tokenizer.json", "revision": COMMIT},
                }
            },
            "ar": {"lit_gpt": {"weights": {**source, "file": "large.safetensors", "sha256": "a" * 64}}},
            "tiny": {"base": "folder"},
        }
    }
    pinned = pins.pin_study(study, **hub)["models"]
    assert set(pinned) == {"mdm", "ar"}
    weights, tokenizer = pinned["mdm"]["lit_gpt"]["weights"], pinned["mdm"]["lit_gpt"]["tokenizer"]
    assert weights["sha256"] == hashlib.sha256(bytes(5000)).hexdigest() and weights["revision"] == COMMIT
    assert tokenizer["sha256"] == hashlib.sha256(b"{}").hexdigest()
    assert pinned["ar"]["lit_gpt"]["weights"]["sha256"] == "a" * 64
    with pytest.raises(UserError, match="owner/model has no absent.safetensors; it has large.safetensors, token"):
        pins.pin({**source, "file": "absent.safetensors"}, **hub)


def test_an_unpinned_checkpoint_is_pinned_fetched_and_converted(hub, tmp_path):
    """Only the files that the network and its tokenizer are read from are fetched."""
    (tmp_path / "theirs").mkdir()
    input_fixtures.write_checkpoint(tmp_path / "theirs", "dream")
    Hub.files.update({file.name: file.read_bytes() for file in (tmp_path / "theirs").iterdir()})
    Hub.files.update({"modeling_dream.py": b"raise SystemExit", "README.md": b"#", "pytorch_model.bin": bytes(2000)})
    source = {"repo": "owner/model", "revision": "unpinned", "files": "unpinned"}
    study = {"models": {"mdm": {"base": "checkpoint", "checkpoint": source}}}
    pinned = pins.pin_study(study, **hub)["models"]["mdm"]["checkpoint"]
    assert pinned["revision"] == COMMIT and set(pinned["files"]) == {
        file.name for file in (tmp_path / "theirs").iterdir()
    }
    layouts.convert(tmp_path / "base", **pinned, **hub)
    net, reader = network.load(tmp_path / "base", device="cpu")
    assert network.mask_id(net) == 311 and len(reader) == 318
    pinned["files"]["model-00002-of-00002.safetensors"] = "0" * 64
    with pytest.raises(network.ModelError, match="00002.safetensors: SHA-256 is .* expected 0000"):
        layouts.convert(tmp_path / "other", **pinned, **hub)


def test_a_linked_model_folder_shares_its_weights_but_not_snakemakes_hidden_files(tmp_path):
    network.save(network.new(causal=True, vocab=10, width=8, layers=1, heads=2, mlp=8, seed=0), None, tmp_path / "one")
    (tmp_path / "one/.snakemake_timestamp").touch()
    folders.link(tmp_path / "one", tmp_path / "two")
    assert (tmp_path / "one/model.safetensors").samefile(tmp_path / "two/model.safetensors")
    assert not (tmp_path / "two/.snakemake_timestamp").exists()
    folders.verify(tmp_path / "two")
