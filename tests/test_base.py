"""Where models start, each way once; the hub is a server on 127.0.0.1."""

import hashlib
import json
import re
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from docs import errors
from reversal.common.errors import UserError
from reversal.data import facts, generated
from reversal.models import dream, folders, network, origins, smdm, tokens
from reversal.models import hub as pins
from reversal.training import bases, pretraining

GOLDEN = Path(__file__).parent / "golden/smdm"
NETWORK = {"width": 32, "layers": 2, "heads": 2, "mlp": 64, "context": 64, "vocabulary": 500}
RECIPE = {"epochs": 1, "batch": 16, "learning_rate": 0.003, "warmup_steps": 2}
COMMIT = "1" * 40


def sha256(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_the_bundled_bases_are_what_their_readme_says(root):
    told = (root / "data/base/README.md").read_text()
    for name, causal in (("mdm", False), ("ar", True)):
        net, _ = network.load(root / "data/base" / name, device="cpu")
        assert network.is_diffusion(net) is not causal
        assert sha256(root / "data/base" / name / "model.safetensors") in told
    first, second = (sha256(root / f"data/base/{name}/tokenizer.json") for name in ("mdm", "ar"))
    assert first == second


def test_a_bundled_base_is_copied_whole(root, tmp_path):
    folders.copy(root / "data/base/mdm", tmp_path / "base", causal=False)
    copied, _ = network.load(tmp_path / "base", device="cpu")
    original, _ = network.load(root / "data/base/mdm", device="cpu")
    assert all(torch.equal(a, b) for a, b in zip(copied.parameters(), original.parameters(), strict=True))


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
def test_a_folder_that_can_be_no_base_of_this_family_is_refused(root, tmp_path, change, message):
    shutil.copytree(root / "data/base/mdm", tmp_path / "net")
    if "without" in change:
        (tmp_path / "net" / change["without"]).unlink()
        (tmp_path / "net/checksums.json").unlink()
    with pytest.raises(UserError, match=message):
        folders.copy(tmp_path / "net", tmp_path / "base", causal=change.get("causal", False))


SHIPPED = "data/base/shipped.json"


def test_what_ships_is_known_by_its_weights_and_what_it_read_by_its_lists(root, tmp_path):
    told = json.loads((root / SHIPPED).read_text())
    for name, causal in (("mdm", False), ("ar", True)):
        assert told["models"][name] == sha256(root / f"data/base/{name}/model.safetensors")
        folders.copy(root / f"data/base/{name}", tmp_path / name, causal=causal)
        assert origins.ships(tmp_path / name, root / SHIPPED)
    lists = [next(root.glob(f"data/*/{name}")) for name in told["lists"]]
    assert origins.read_in_pretraining(tmp_path / "mdm", lists, root / SHIPPED)
    (tmp_path / "roles.txt").write_text("baker\n")
    other = [tmp_path / "roles.txt" if file.name == "roles.txt" else file for file in lists]
    assert not origins.read_in_pretraining(tmp_path / "mdm", other, root / SHIPPED)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"base": "folder", "folder": "data/base/mdm"}, "a model of your own, from data/base/mdm"),
        ({"base": "scratch"}, "random weights"),
        ({"base": "llada", "llada": {"folder": "my/8B"}}, "a LLaDA checkpoint in a local folder, my/8B"),
        (
            {"base": "hub", "hub": {"repo": "o/n", "revision": "a" * 40}},
            "the public checkpoint o/n, commit aaaaaaaaaaaa",
        ),
        ({"base": "lit_gpt", "lit_gpt": {"weights": {"path": "x.safetensors"}}}, "of your own, from x.safetensors"),
        ({"base": "lit_gpt", "lit_gpt": {"weights": {"repo": "nieshen/SMDM"}}}, "that SMDM's authors published"),
        (
            {"base": "lit_gpt", "lit_gpt": {"weights": {"repo": "o/n", "file": "f", "revision": "a" * 40}}},
            "the public checkpoint o/n/f, commit aaaaaaaaaaaa",
        ),
    ],
)
def test_an_origin_is_told_only_where_it_is_known(root, tmp_path, model, said):
    """A folder is not what ships because of its name."""
    (tmp_path / "checksums.json").write_text(json.dumps({"model.safetensors": "0" * 64}))
    assert origins.told(model, tmp_path, root / SHIPPED).endswith(said)


def test_scratch_makes_a_network_for_the_training_rows(generated, tmp_path):
    facts.write(generated[1][:200], tmp_path / "train.jsonl")
    bases.scratch(tmp_path / "train.jsonl", tmp_path / "base", causal=False, shape=NETWORK, seed=0)
    net, tokenizer = network.load(tmp_path / "base", device="cpu")
    assert network.is_diffusion(net) and network.vocab(net) == len(tokenizer) <= 500


def pretrained(folder, root, **changes):
    words = changes.pop("vocabulary_of", None)
    options = {"causal": True, "shape": NETWORK, "recipe": RECIPE, "checkpoints": folder / "checkpoints"} | changes
    told = pretraining.Biographies(root / "data/words", root / "data/templates", people=20, rows=160, seed=0)
    folder.mkdir()
    pretraining.tokenizer(folder / "tokenizer", told, size=NETWORK["vocabulary"], vocabulary_of=words)
    reader = folder / "tokenizer"
    pretraining.pretrain(folder / "base", folder / "history.csv", told, reader=reader, **options)
    return network.load(folder / "base", device="cpu")


def test_pretraining_twice_gives_the_same_base(root, tmp_path):
    (first, _), (second, _) = (pretrained(tmp_path / name, root) for name in ("one", "two"))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not (tmp_path / "one/checkpoints").exists()


def test_both_families_are_pretrained_on_the_same_text(root, tmp_path):
    (_, first), (_, second) = (
        pretrained(tmp_path / name, root, causal=causal) for name, causal in (("ar", True), ("mdm", False))
    )
    assert first.get_vocab() == second.get_vocab()


def test_a_tokenizer_knows_the_words_of_a_study_that_the_network_never_sees(root, tmp_path):
    row = facts.Row("p2d-00", 0, "Zyzzyva Quillfeather wove", " an ultramarine gonfalon.", (0, 20), (1, 24))
    facts.write([row] * 30, tmp_path / "train.jsonl")
    (net, without), (_, knowing) = (
        pretrained(tmp_path / name, root, vocabulary_of=file)
        for name, file in (("one", None), ("two", tmp_path / "train.jsonl"))
    )
    strange = " Quillfeather"
    assert len(knowing(strange)["input_ids"]) == 1 < len(without(strange)["input_ids"])


def test_the_recorded_text_of_the_bundled_bases_is_still_generated(root, words):
    """The hash in the README is that of a million sentences; the first thousand are enough to notice a change here."""
    templates = {
        d: generated.read_templates(root / f"data/templates/pretraining_{d}.txt", answer_type=a)
        for d, a in generated.DIRECTIONS.items()
    }
    texts = list(generated.biographies(words, templates, people_count=1000, rows=1000, seed=0))
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
    """As much of a model hub as a download asks for; `cut` bytes into a file's first transfer it hangs up."""

    files, ranges, cut = {}, [], None

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        if self.path.startswith("/api/models/owner/model"):
            return self.describe()
        found = re.fullmatch(rf"/owner/model/resolve/{COMMIT}/(.+)", self.path)
        content = self.files.get(found[1]) if found else None
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
        told = json.dumps({"id": "owner/model", "sha": COMMIT, "siblings": listed}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    @staticmethod
    def large(content):
        if len(content) < 1000:
            return {}
        return {"lfs": {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 100}}

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The options that lead a download to a hub on 127.0.0.1."""
    monkeypatch.setattr(Hub, "files", {})
    monkeypatch.setattr(Hub, "ranges", [])
    monkeypatch.setattr(Hub, "cut", None)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield {"cache": str(tmp_path / "cache"), "endpoint": f"http://127.0.0.1:{server.server_port}"}
    server.shutdown()
    server.server_close()


def test_a_causal_model_of_another_kind_comes_from_the_hub(hub, tokenizer, tmp_path):
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


def test_a_wrong_hash_is_refused(hub):
    Hub.files["model.safetensors"] = b"not what was pinned"
    with pytest.raises(network.ModelError, match=r"model\.safetensors: SHA-256 is .*, expected aaaa"):
        pins.fetch("owner/model", "model.safetensors", COMMIT, "a" * 64, **hub)


@pytest.mark.parametrize("how", ["endpoint", "environment"])
def test_the_hub_is_asked_over_https_only(hub, monkeypatch, how):
    """A token that the user has for the hub would be sent along."""
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


def test_what_the_hub_refuses_is_told_without_the_token(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_canary")
    refused = "403: see https://user:hf_canary@cdn.example.org/x?Signature=hf_canary&Key=1 for more"
    monkeypatch.setattr(pins, "hf_hub_download", lambda *_, **__: (_ for _ in ()).throw(OSError(refused)))
    with pytest.raises(network.ModelError, match=r"OSError: 403: see https://cdn\.example\.org/x for more") as caught:
        pins.fetch("owner/model", "model.safetensors", COMMIT, "a" * 64, **hub)
    assert "canary" not in str(caught.value)


def test_a_hub_model_without_a_tokenizer_is_refused(hub, tmp_path):
    GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=40)).save_pretrained(tmp_path / "gpt")
    Hub.files.update({file.name: file.read_bytes() for file in (tmp_path / "gpt").iterdir()})
    files = {name: hashlib.sha256(content).hexdigest() for name, content in Hub.files.items()}
    with pytest.raises(network.ModelError, match=r"owner/model: tokenizer\.json is not among its files"):
        bases.from_hub(tmp_path / "base", repo="owner/model", revision=COMMIT, files=files, **hub)


def test_a_file_that_is_not_there_is_named(hub):
    with pytest.raises(
        network.ModelError, match=r"owner/model/absent\.safetensors at 1+ could not be fetched"
    ) as caught:
        pins.fetch("owner/model", "absent.safetensors", COMMIT, "a" * 64, **hub)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.pt", "x.pkl"])
def test_pickled_weights_are_not_even_fetched(hub, name):
    with pytest.raises(network.ModelError, match=r"from \.safetensors only"):
        pins.fetch("owner/model", name, COMMIT, "a" * 64, **hub)
    assert not Hub.ranges


def test_pins_are_asked_of_the_hub_and_a_hash_that_is_there_stays(hub):
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
    found = pins.overlay(study, **hub)["models"]
    assert set(found) == {"mdm", "ar"}
    weights, tokenizer = found["mdm"]["lit_gpt"]["weights"], found["mdm"]["lit_gpt"]["tokenizer"]
    assert weights["sha256"] == hashlib.sha256(bytes(5000)).hexdigest() and weights["revision"] == COMMIT
    assert tokenizer["sha256"] == hashlib.sha256(b"{}").hexdigest()
    assert found["ar"]["lit_gpt"]["weights"]["sha256"] == "a" * 64
    with pytest.raises(UserError, match="owner/model has no absent.safetensors; it has large.safetensors, token"):
        pins.pin({**source, "file": "absent.safetensors"}, **hub)


def test_an_unpinned_checkpoint_is_pinned_fetched_and_converted(hub, tmp_path):
    """Of all that a repository holds, only what the network and its tokenizer are read from is fetched."""
    (tmp_path / "theirs").mkdir()
    errors.published(tmp_path / "theirs", "dream")
    Hub.files.update({file.name: file.read_bytes() for file in (tmp_path / "theirs").iterdir()})
    Hub.files.update({"modeling_dream.py": b"raise SystemExit", "README.md": b"#", "pytorch_model.bin": bytes(2000)})
    source = {"repo": "owner/model", "revision": "unpinned", "files": "unpinned"}
    study = {"models": {"mdm": {"base": "dream", "dream": source}}}
    found = pins.overlay(study, **hub)["models"]["mdm"]["dream"]
    assert found["revision"] == COMMIT and set(found["files"]) == {
        file.name for file in (tmp_path / "theirs").iterdir()
    }
    dream.convert(tmp_path / "base", **found, **hub)
    net, reader = network.load(tmp_path / "base", device="cpu")
    assert network.mask_id(net) == 311 and len(reader) == 318
    found["files"]["model-00002-of-00002.safetensors"] = "0" * 64
    with pytest.raises(network.ModelError, match="00002.safetensors: SHA-256 is .* expected 0000"):
        dream.convert(tmp_path / "other", **found, **hub)


def test_a_model_in_two_folders_takes_room_once_and_shares_nothing_that_changes(tmp_path):
    network.save(network.new(causal=True, vocab=10, width=8, layers=1, heads=2, mlp=8, seed=0), None, tmp_path / "one")
    (tmp_path / "one/.snakemake_timestamp").touch()
    folders.link(tmp_path / "one", tmp_path / "two")
    assert (tmp_path / "one/model.safetensors").samefile(tmp_path / "two/model.safetensors")
    assert not (tmp_path / "two/.snakemake_timestamp").exists()
    folders.verify(tmp_path / "two")
