"""Adapters of pretrained transformers, against loops with PEFT by hand; and what is refused in one sentence."""

import importlib.util
import json
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import atoll
from atoll import Experiment, InputError, State, read_result, run_events
from atoll.data.named_datasets import read_table
from atoll.fleet.agreed.messages import Refused
from atoll.fleet.node.shards import write_shards
from atoll.fleet.node.sites import Sites
from atoll.local.models import Model
from atoll.settings.validation import validate
from tests.fleets import agreement_of
from tests.memory_store import MemoryStore
from tests.texts import LENGTH, SETTINGS, changed, make_all, make_texts, work_beside, write_gpt2
from tests.tiers import thinned

pytestmark = [
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("peft", "transformers"))), reason="the extra text is not installed"
    ),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # transformers' of its own names
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_all(tmp_path_factory.mktemp("texts"))


@pytest.fixture(autouse=True)
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work beside the texts and the base, with a cache of one's own and without a hub."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return work_beside(made, tmp_path, monkeypatch)


def experiment(**sections: Any) -> Experiment:
    return Experiment(validate(changed(**sections)))


def end_of(mine: Experiment, folder: str = "run", resume: bool = False) -> tuple[dict[str, Any], State]:
    """Run to the end; return the last row and state."""
    *_, last = run_events(mine, Path(folder), resume)
    state = read_result(Path(folder)).state
    assert last.row is not None
    assert state is not None
    return last.row, state


def model_of(state: State) -> Model:
    assert state.server is not None
    return state.server


def adapted(causal: bool = True, **lora: Any) -> Any:
    """Return the base with adapters as PEFT makes them."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    auto = AutoModelForCausalLM if causal else AutoModelForSequenceClassification
    model = auto.from_pretrained("base", **({} if causal else {"num_labels": 2}))
    kind = "CAUSAL_LM" if causal else "SEQ_CLS"
    given = {"r": 2, "target_modules": "all-linear", "fan_in_fan_out": True, "task_type": kind}
    return get_peft_model(model, LoraConfig(**{**given, **lora}))


def load_adapters(model: Any, adapters: dict[str, torch.Tensor]) -> None:
    own = {name.removeprefix("transformer."): tensor for name, tensor in adapters.items()}
    missing = model.load_state_dict(own, strict=False)
    assert not missing.unexpected_keys


def tokens_of(text: str) -> torch.Tensor:
    from tokenizers import Tokenizer

    return torch.tensor([Tokenizer.from_file("base/tokenizer.json").encode(text).ids])


def texts_by_client(test: bool = False) -> dict[str, list[str]]:
    """Return each client's texts; every fifth is for testing, as `hold_out` counts them."""
    data = experiment().clients.dealt.data
    names, pool = data.names["owners"], data.test if test else data
    assert pool.owners is not None
    found: dict[str, list[str]] = {}
    for owner, row in zip(pool.owners.tolist(), pool.inputs, strict=True):
        letters = row[row >= 0].tolist()
        (text,) = {each["text"] for each in make_texts() if tokens_of(each["text"])[0].tolist() == letters}
        found.setdefault(names[owner], []).append(text)
    return found


@pytest.mark.more
def test_fedavg_of_adapters_is_a_loop_with_peft_by_hand() -> None:
    """Each text alone, unpadded, with the loss that transformers computes itself."""
    mine = experiment()
    (start,) = mine.training.initial_models()
    own, model = texts_by_client(), adapted()
    server = {name: tensor.clone() for name, tensor in start.items()}
    for _ in range(2):
        total, summed = 0, dict.fromkeys(server, torch.zeros(()))
        for texts in own.values():
            load_adapters(model, server)
            optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                for text in texts:
                    ids = tokens_of(text)
                    (model(input_ids=ids, labels=ids).loss / len(texts)).backward()
                optimizer.step()
            sent = {f"transformer.{name}": tensor for name, tensor in model.state_dict().items()}
            summed = {name: summed[name] + len(texts) * sent[name].clone() for name in server}
            total += len(texts)
        server = {name: tensor / total for name, tensor in summed.items()}
    row, state = end_of(mine)
    assert model_of(state).keys() == server.keys()
    assert any((server[name] - start[name]).abs().max() > 0.01 for name in server)
    for name, tensor in server.items():
        torch.testing.assert_close(model_of(state)[name], tensor, rtol=0, atol=1e-6)
    load_adapters(model, server)
    tests = [tokens_of(text) for texts in texts_by_client(test=True).values() for text in texts]
    with torch.no_grad():
        losses = [float(model.eval()(input_ids=ids, labels=ids).loss) for ids in tests]
    assert row["test_loss"] == pytest.approx(np.mean(losses), abs=1e-5)
    assert row["perplexity"] == pytest.approx(np.exp(np.mean(losses)), rel=1e-5)


@pytest.mark.more
def test_only_adapters_travel_and_their_bytes_are_known_before_training() -> None:
    mine = experiment()
    mine.check()
    (start,) = mine.training.initial_models()
    assert all("lora_" in name for name in start)
    adapters = sum(tensor.numel() for tensor in start.values())
    assert mine.traffic.message_bytes == 4 * adapters
    assert mine.traffic.bytes_of(mine.method.schedule.events) == (2 * 4 * 4 * adapters, 2 * 4 * 4 * adapters)
    whole = experiment(model={"lora": None})
    assert whole.traffic.message_bytes > 5 * mine.traffic.message_bytes


def test_copies_share_what_is_frozen_and_nothing_else() -> None:
    mine = experiment()
    copies = [mine.initial.copy() for _ in range(2)]
    copies.append(deepcopy(copies[0]))  # as threads have them
    own, *others = (dict(each.named_parameters()) for each in (mine.module, *copies))
    for name, parameter in own.items():
        shared = {each[name].data_ptr() == parameter.data_ptr() for each in others}
        assert shared == {not parameter.requires_grad}, name
    trained = [each.data_ptr() for other in others for each in other.values() if each.requires_grad]
    assert len(set(trained)) == len(trained)


@pytest.mark.more
@pytest.mark.parametrize("executor", ["cores", pytest.param("ray", marks=pytest.mark.slow)])
def test_executors_and_a_resumed_run_give_the_same_bits(executor: str) -> None:
    sections = {"local": {"optimizer": "adamw", "lr": 0.01, "batch_size": 4}, "rounds": 3}
    sections["model"] = {"lora": {"r": 2, "target_modules": "all-linear", "lora_dropout": 0.1}}
    _, whole = end_of(experiment(**sections), "whole")
    end_of(experiment(**{**sections, "rounds": 1}), "cut")
    _, resumed = end_of(experiment(**sections), "cut", resume=True)
    _, other = end_of(experiment(**sections, run={"executor": executor, "workers": 2}), executor)
    for state in (resumed, other):
        assert all(torch.equal(tensor, model_of(whole)[name]) for name, tensor in model_of(state).items())


PEAK = """
import json, resource, sys, atoll
atoll.run(json.loads(sys.argv[1]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_ten_clients_take_hardly_more_memory_than_one(place: Path) -> None:
    """Of a base of 100 MB: if each client had its own, ten would take 900 MB more."""
    write_gpt2(place / "large", n_embd=512, n_layer=8)
    assert (place / "large" / "model.safetensors").stat().st_size > 100e6
    peaks = []
    for clients in (1, 10):
        data = {"client": None, "group": None, "partition": "iid", "clients": clients}
        given = json.dumps(changed(data=data, model={"path": "large"}, local={"steps": 1, "batch_size": 4}))
        done = subprocess.run(
            [sys.executable, "-c", PEAK, given], cwd=place, capture_output=True, text=True, check=True
        )
        peaks.append(int(done.stdout.split()[-1]))
    assert peaks[1] <= 1.3 * peaks[0]


@pytest.mark.more
def test_clusters_and_clients_have_perplexities_of_their_own() -> None:
    sections = {"method": {"name": "flhc", "clusters": 2, "warmup": 1, "fraction": 1.0}, "rounds": 6}
    mine = experiment(**sections, local={"lr": 1.0}, run={"probes": ["client_perplexity", "client_loss"]})
    row, state = end_of(mine)
    assert row["ari"] == 1
    assert row["perplexity"] == pytest.approx(np.exp(row["test_loss"]))
    assert len(row["cluster_perplexity"]) == 2
    assert min(row["cluster_perplexity"]) <= row["perplexity"] <= max(row["cluster_perplexity"])
    assert row["client_perplexity"] <= row["worst_client_perplexity"]
    model, losses = adapted().eval(), {}
    labels = state.labels
    assert labels is not None
    for client, texts in enumerate(texts_by_client(test=True).values()):
        load_adapters(model, dict(state.starts[labels[client]]))
        with torch.no_grad():
            losses[client] = np.mean([float(model(input_ids=ids, labels=ids).loss) for ids in map(tokens_of, texts)])
    assert row["client_perplexity"] == pytest.approx(np.mean(np.exp(list(losses.values()))), rel=1e-4)


@pytest.mark.more
def test_classes_are_told_by_texts_and_a_head_may_stay() -> None:
    sections = {"data": {"task": None, "target": "short"}, "local": {"optimizer": "adam", "lr": 0.05}, "rounds": 4}
    mine = experiment(**sections)
    begun = next(run_events(mine, Path("begun"))).row
    row, state = end_of(mine)
    assert begun is not None
    assert row["train_loss"] < begun["train_loss"]
    assert row["test_accuracy"] is not None
    assert any("score" in name for name in model_of(state))
    data, module = mine.clients.dealt.data, mine.initial.copy().eval()
    with torch.no_grad():
        together = module(torch.from_numpy(data.inputs))
        alone = torch.cat([module(torch.from_numpy(row[row >= 0][None])) for row in data.inputs])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)
    _, personal = end_of(experiment(**sections, method={"name": "fedper", "personal_layers": 1}), "personal")
    assert not any("score" in name for name in model_of(personal))
    assert all(any("score" in name for name in kept) for kept in personal.clients.values())


@pytest.mark.more
def test_it_is_written_as_onnx_whole_and_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    mine = experiment()
    end_of(mine)
    capfd.readouterr()
    session = onnxruntime.InferenceSession(atoll.export_model("run", "onnx").file, providers=["CPUExecutionProvider"])
    assert capfd.readouterr() == ("", "")
    tokens = mine.clients.dealt.data.inputs[:5]
    (found,) = session.run(None, {"input": tokens.astype(np.float32)})
    np.testing.assert_allclose(found, read_result("run").predict(tokens), atol=1e-5)


def told(**sections: Any) -> str:
    with pytest.raises(InputError) as error:
        experiment(**sections).check()
    return str(error.value)


def test_what_does_not_fit_is_refused_in_one_sentence(place: Path) -> None:
    lora = {"r": 2, "target_modules": ["c_atn"]}
    assert told(model={"lora": lora}) == (
        "model.lora.target_modules: 'c_atn' is none of the model's layers, did you mean 'c_attn'? they are c_attn, "
        "c_fc, c_proj, lm_head, ln_1, ln_2, ln_f, wpe, wte"
    )
    assert told(model={"lora": {"rank": 2}}).startswith("model.lora.rank: unknown, did you mean 'rank_pattern'?")
    assert told(model={"lora": {"r": 0}}).startswith("model.lora: `r` should be a positive integer value")
    assert told(data={"length": LENGTH + 1}) == ("data.length = 17: model.path = 'base' takes at most 16 tokens")
    (place / "empty").mkdir()
    assert told(model={"path": "empty"}) == (
        "model.path = 'empty': the folder lacks config.json and model.safetensors, which model.save_pretrained writes"
    )
    assert told(data={"tokenizer": "empty"}) == (
        "data.tokenizer = 'empty': the folder lacks tokenizer.json, which tokenizer.save_pretrained writes"
    )
    assert told(model={"path": "nowhere"}).startswith(
        "model.path = 'nowhere': is no folder here, and cannot be loaded from the hub ("
    )
    write_gpt2(place / "few", vocab_size=50, eos_token_id=None)
    assert told(model={"path": "few"}) == (
        "model.path = 'few': knows 50 tokens, but data.tokenizer made token 220; use the model's own tokenizer"
    )
    assert told(model={"name": "lstm", "path": None, "lora": None}) == (
        "model.name = 'lstm': cannot predict next tokens (data.task = 'causal'); model.name = 'pretrained' can"
    )
    assert told(data={"dataset": "digits", **dict.fromkeys(SETTINGS["data"].keys() - {"dataset"})}) == (
        "model.path = 'base': needs texts as tokens; set data.tokenizer, and leave data.standardise out"
    )
    assert told(model={"lora": None}, method={"combine": "lora-product"}) == (
        "method.combine = 'lora-product': the model has no adapters that travel; model.lora adds them"
    )


CLASSES = {"task": None, "target": "short"}


@pytest.mark.more
@pytest.mark.parametrize("padding", thinned([5000, -1], 1))
def test_a_padding_token_that_the_model_lacks_is_not_used(place: Path, padding: int) -> None:
    write_gpt2(place / "padded", pad_token_id=padding)
    for data in ({}, CLASSES):
        ends = [
            end_of(experiment(data=data, model={"path": path}), f"{path}{len(data)}") for path in ("base", "padded")
        ]
        assert all(torch.equal(model_of(ends[0][1])[name], each) for name, each in model_of(ends[1][1]).items())
    write_gpt2(place / "none", pad_token_id=padding, eos_token_id=None)
    assert told(data=CLASSES, model={"path": "none"}) == (
        "model.path = 'none': its config.json names no pad_token_id below vocab_size = 257; set it, since texts differ "
        "in length"
    )


@pytest.mark.more
def test_damaged_weights_are_refused(place: Path) -> None:
    write_gpt2(place / "torn")
    (place / "torn" / "model.safetensors").write_bytes(b"torn")
    assert told(model={"path": "torn"}).startswith("model.path = 'torn': cannot be read (")
    config = json.loads((place / "torn" / "config.json").read_text())
    (place / "torn" / "config.json").write_text(json.dumps({**config, "model_type": "unheard-of"}))
    assert told(model={"path": "torn"}).startswith("model.path = 'torn': cannot be read (")


def test_texts_that_are_too_short_are_refused_or_left_out() -> None:
    write = Path("short.parquet")
    rows = make_texts()
    rows[3]["text"] = ""
    pq.write_table(atoll_table(rows), write)
    assert told(data={"root": "short.parquet"}) == (
        "data.inputs = 'text': row 3 of the table, counted from 0, has fewer than two tokens; data.missing = 'drop' "
        "leaves such rows out"
    )
    mine = experiment(data={"root": "short.parquet", "missing": "drop"})
    assert len(mine.clients.dealt.data) + len(mine.clients.dealt.data.test) == len(rows) - 1


def atoll_table(rows: list[dict[str, Any]]) -> Any:
    import pyarrow as pa

    return pa.Table.from_pylist(rows)


def test_long_texts_are_cut_and_tokens_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import tokenizers

    rows: list[dict[str, Any]] = [{"text": "abcdefghi"}, {"text": "ab"}, {"text": "abcd"}] * 5
    frame = atoll_table(rows)
    data = atoll.from_pandas(frame, task="causal", tokenizer="base", length=4)
    known = sorted(tuple(row[row >= 0].tolist()) for part in (data.inputs, data.test_inputs) for row in part)
    pieces = ("abcd", "efgh", "ab", "abcd")  # of the first text, one token alone is left out
    assert known == sorted(tuple(tokens_of(each)[0].tolist()) for each in pieces * 5)
    assert data.inputs.dtype == np.int32
    assert (np.diff((data.inputs >= 0).sum(axis=1)) >= 0).all(), "those measured together are of similar length"
    with monkeypatch.context() as patch:
        patch.setattr(tokenizers.Tokenizer, "encode_batch", None)
        again = atoll.from_pandas(frame, task="causal", tokenizer="base", length=4)
    np.testing.assert_array_equal(again.inputs, data.inputs)
    (kept,) = Path("cache").rglob("*.npz")
    whole = kept.read_bytes()
    for damaged in (b"torn", b"", whole[: len(whole) // 2], whole[:200] + b"?" * 9 + whole[209:]):
        kept.write_bytes(damaged)
        np.testing.assert_array_equal(
            atoll.from_pandas(frame, task="causal", tokenizer="base", length=4).inputs, data.inputs
        )


def test_texts_of_csv_files_that_are_clients(place: Path) -> None:
    (place / "c").mkdir()
    for client in ("ann", "bob"):
        (place / "c" / f"{client}.csv").write_text("text\n" + "abcd\n" * 5)
    data = read_table("c", task="causal", tokenizer="base", client="file", inputs="text")
    assert (data.names["owners"], len(data), len(data.test)) == (("ann", "bob"), 8, 2)


def test_no_server_of_a_fleet_names_the_folder_that_a_node_loads() -> None:
    write_gpt2(Path("other"))
    own, asked = experiment(), experiment(model={"path": "other"})
    write_shards(own, Path("shards"))
    sites = Sites([own.settings], Path("shards/client-0"), 0, MemoryStore(), allowed=["model.*"])
    agreement = agreement_of(asked)
    with pytest.raises(Refused, match=r'node\.toml does not allow model\.path = "other"$'):
        sites.find(agreement.digest, agreement.told)
