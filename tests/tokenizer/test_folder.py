"""Hugging Face folders: weights mapped from safetensors, and tokenizers from tokenizer.json against the library itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fresh import fresh_random, fresh_rng
from tests.tokenizer.vocabularies import TEXT, varied
from tilewright.core.errors import FormatError, UnsupportedError
from tilewright.frontend.safetensors import HFFolder, open_folder, open_safetensors
from tilewright.llm.tokenizer_json import tokenizer_from_folder

numpy_files = pytest.importorskip("safetensors.numpy", reason="reads and writes the weights (pip install tilewright[llm])")
tokenizers = pytest.importorskip("tokenizers", reason="reads tokenizer.json (pip install tilewright[llm])")


def folder(path: Path, tensors: dict[str, Any] | None = None, **files: Any) -> Path:
    (path / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": [1, 2]}))
    numpy_files.save_file(tensors or {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}, path / "model.safetensors")
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def test_tensors_are_views(tmp_path: Path) -> None:
    import ml_dtypes

    rng = fresh_rng()
    x = rng.standard_normal((3, 5)).astype(np.float32)
    tensors: dict[str, Any] = {"a": x, "h": x.astype(np.float16), "b": x.astype(ml_dtypes.bfloat16), "e": x[:0]}
    tensors["s"] = np.array(7, np.float32)
    f = open_folder(folder(tmp_path, tensors))
    assert f.architecture == "llama" and set(f.tensors) == set(tensors)
    for name, value in tensors.items():
        t = f.tensor(name)
        assert t.shape == value.shape and t.data.shape[0] == t.rows and not t.data.flags.writeable
        assert np.array_equal(t.array(), value) and np.array_equal(t.dequantize(), value.astype(np.float32))


def test_shards(tmp_path: Path) -> None:
    folder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    for i in (1, 2):
        numpy_files.save_file({f"w{i}": np.full(3, i, np.float32)}, tmp_path / f"model-{i}.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w1": "model-1.safetensors", "w2": "model-2.safetensors"}}))
    assert {n: t.dequantize()[0] for n, t in open_folder(tmp_path).tensors.items()} == {"w1": 1, "w2": 2}
    for bad, message in [
        ({"w1": "../x.safetensors"}, r"a .safetensors file in the folder itself, got '../x.safetensors'"),
        ({"w1": "/etc/passwd"}, "in the folder itself"),
        ({"w1": "model-3.safetensors"}, r"shard model-3.safetensors is missing"),
        ({"w1": "model-1.safetensors", "w9": "model-1.safetensors"}, "1 tensors are in no file, the first is 'w9'"),
        ({"w1": 3}, "'weight_map' must map names to files"),
    ]:
        index.write_text(json.dumps({"weight_map": bad}))
        with pytest.raises(FormatError, match=message):
            open_folder(tmp_path)


def test_bad_folders(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"no config\.json"):
        open_folder(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(FormatError, match="must be a JSON object, got list"):
        open_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(FormatError, match="not valid JSON"):
        open_folder(tmp_path)
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(FormatError, match="not valid JSON"):
        open_folder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(FormatError, match="is a pickle and is not read"):
        open_folder(tmp_path)
    f = open_folder(folder(tmp_path, {"w": np.zeros(2, np.float32), "m": np.zeros(2, np.uint8)}))
    with pytest.raises(FormatError, match="tensor 'x' is missing"):
        f.tensor("x")
    with pytest.raises(UnsupportedError, match="tensor 'm' has type U8"):
        f.tensor("m")


def test_damaged_safetensors(tmp_path: Path) -> None:
    whole = (folder(tmp_path) / "model.safetensors").read_bytes()
    path = tmp_path / "x.safetensors"
    rng = fresh_random()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.raises(FormatError, match=r"safetensors: "):
            open_safetensors(path)
    refused = 0
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(90)] = rng.randrange(256)
        path.write_bytes(data)
        try:
            for t in open_safetensors(path)[0].values():
                assert t.nbytes <= len(whole)
        except FormatError:
            refused += 1
    assert 0 < refused


def library(kind: str) -> Any:
    """A tokenizer trained by the library itself."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    trainer: Any
    if kind == "bytes":
        t = Tokenizer(models.BPE())
        t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    elif kind == "metaspace":
        t = Tokenizer(models.Unigram())
        t.pre_tokenizer, t.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=200, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    else:
        t = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
        t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
        trainer = trainers.BpeTrainer(
            vocab_size=600, special_tokens=["<unk>", *(f"<0x{b:02X}>" for b in range(256))], show_progress=False
        )
    t.train_from_iterator([TEXT.replace("日", "")] * 3, trainer)
    if kind == "fallback":
        state = json.loads(t.to_str())
        state["added_tokens"] = [a for a in state["added_tokens"] if not a["content"].startswith("<0x")]
        t = Tokenizer.from_str(json.dumps(state))
    t.add_special_tokens([AddedToken("<|end|>", special=True), AddedToken("<s>", special=True)])
    t.add_tokens([AddedToken("[user]", normalized=False)])
    return t


@pytest.mark.parametrize("kind", ["bytes", "metaspace", "fallback"])
def test_against_the_library(kind: str, tmp_path: Path) -> None:
    theirs = library(kind)
    folder(tmp_path, tokenizer_config={"bos_token": {"content": "<s>"}, "eos_token": "<|end|>", "chat_template": "T"})
    theirs.save(str(tmp_path / "tokenizer.json"))
    ours = tokenizer_from_folder(open_folder(tmp_path))
    assert ours.vocabulary_size == theirs.get_vocab_size()
    assert (ours.bos, ours.eos, ours.eot) == tuple(theirs.token_to_id(t) for t in ("<s>", "<|end|>", "<|end|>"))
    assert ours.stop_ids == {ours.eos, 1, 2} and ours.chat_template == "T"
    rng = fresh_random()
    for _ in range(40):
        text = varied(rng).replace("▁", " ")
        text = rng.choice([text, text + "<|end|>" + text, text + "[user]" + text, text + "<|end|>[user]"])
        ids = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, special=True) == ids
        if kind != "metaspace":  # a unigram vocabulary without bytes loses characters
            if "[user]" not in text:  # the library, too, puts a space behind it
                assert ours.decode(ours.encode(text)) == text
            if "<|end|>" not in text and "[user]" not in text:
                assert ours.decode(ids) == theirs.decode(ids) == text
    assert ours.eos not in ours.encode("a<|end|>")


def test_bad_tokenizers(tmp_path: Path) -> None:
    f: HFFolder = open_folder(folder(tmp_path))
    with pytest.raises(FormatError, match=r"no tokenizer\.json"):
        tokenizer_from_folder(f)
    for text, message in (('{"version": 3}', r"'model' must be an object, got NoneType"), ("[" * 100_000, "not valid JSON"),
                          ('{"model": {}}', r"tokenizer\.json cannot be read"),
                          ('{"model": {"type": "BPE", "dropout": 0.5}}', "'dropout' is 0.5, which is not supported")):
        (tmp_path / "tokenizer.json").write_text(text)
        with pytest.raises((FormatError, UnsupportedError), match=rf"{message}.*tokenizer\.json\)$"):
            tokenizer_from_folder(f)
    t = library("bytes")
    t.decoder = tokenizers.decoders.WordPiece()
    t.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UnsupportedError, match=r"decoder \(WordPiece\) is not supported"):
        tokenizer_from_folder(f)


def test_files_that_would_end_the_process(tmp_path: Path) -> None:
    """A merge that the library would cut inside a character; normalizers that would fill the memory; padding that would, too."""
    f, path = open_folder(folder(tmp_path)), tmp_path / "tokenizer.json"
    model = {"type": "BPE", "vocab": {"a": 0, "é": 1, "aé": 2}, "merges": [["a", "é"]], "continuing_subword_prefix": "x"}
    whole = json.loads(library("bytes").to_str())
    grow = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    for change, message in (
        ({"model": model}, "merge 0 ends with 'é', which does not begin with the prefix 'x'"),
        ({"model": {**model, "merges": ["a é"]}}, "merge 0 ends with 'é'"),
        ({"normalizer": {"type": "Sequence", "normalizers": [grow] * 40}}, "normalizers make a text more than 64 times as long"),
        ({"normalizer": {"type": "Replace", "pattern": {"Regex": "."}, "content": "a" * 65}}, "more than 64 times as long"),
        ({"normalizer": {"type": "Prepend", "prepend": "a" * 65}}, "more than 64 times as long"),
    ):
        path.write_text(json.dumps({**whole, **change}))
        with pytest.raises(FormatError, match=message):
            tokenizer_from_folder(f)
    padding = {"strategy": {"Fixed": 1 << 40}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
               "pad_token": "a"}
    truncation = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
    path.write_text(json.dumps({**whole, "padding": padding, "truncation": truncation}))
    assert len(tokenizer_from_folder(f).encode("hello there")) > 1
    whole["model"]["vocab"]["far away"] = 1 << 23
    path.write_text(json.dumps(whole))
    with pytest.raises(FormatError, match="tokens have ids up to 8388608"):
        tokenizer_from_folder(f)


def test_a_template_of_its_own_file_comes_first(tmp_path: Path) -> None:
    library("bytes").save(str(tmp_path / "tokenizer.json"))
    folder(tmp_path, tokenizer_config={"chat_template": [{"name": "tool", "template": "A"}, {"name": "default", "template": "B"}]})
    assert tokenizer_from_folder(open_folder(tmp_path)).chat_template == "B"
    (tmp_path / "chat_template.jinja").write_text("C")
    assert tokenizer_from_folder(open_folder(tmp_path)).chat_template == "C"


def test_a_template_is_utf8_in_any_locale(tmp_path: Path) -> None:
    library("bytes").save(str(folder(tmp_path) / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text("<\uff5cUser\uff5c>", encoding="utf-8")
    code = ("import sys; from tilewright.frontend.safetensors.folder import open_folder; from tilewright.llm.tokenizer_json import "
            "tokenizer_from_folder; print(ascii(tokenizer_from_folder(open_folder(sys.argv[1])).chat_template))")  # fmt: skip
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=env, capture_output=True, text=True)
    assert done.stdout == "'<\\uff5cUser\\uff5c>'\n", done.stderr


def test_mutated_tokenizers(tmp_path: Path) -> None:
    f = open_folder(folder(tmp_path))
    whole, rng, refused = library("bytes").to_str(), fresh_random(), 0
    for _ in range(150):
        text = list(whole)
        for _ in range(rng.randrange(1, 4)):
            text[rng.randrange(6000)] = rng.choice('{}[]",:019abt\\u ')
        (tmp_path / "tokenizer.json").write_text("".join(text))
        try:
            tokenizer_from_folder(f).encode("hello é [user]<|end|>", special=True)
        except (FormatError, UnsupportedError):
            refused += 1
    assert 0 < refused
