"""GroupQueryAttention and its relatives with caches of keys and values, drawn at random, beside ONNX Runtime."""
from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import tilewright as tw
from tests.fresh import fresh_rng
from tests.onnx.models import helper, info, model, one, ours, peer

MS = "com.microsoft"
Drawn = tuple[list[Any], dict[str, Any], int]  # inputs, attributes, results


def group_query(kind: str, rng: Any) -> Drawn:
    """`prompt`: no past, or one that does not count; `decode`: one new key a row; `chunk`: several; `shared`: none, the cache is another's.
    Caches are as long as the past or longer, rows have lengths of their own."""
    b, kv, h = int(rng.integers(1, 4)), int(rng.integers(1, 4)), int(rng.choice([16, 32, 48]))
    n, s = kv * int(rng.choice([1, 2, 4])), int(rng.integers(1, 9))
    longest = int(rng.integers(2, 12))
    if kind == "prompt":
        longest = s
    elif kind == "decode":
        s = 1
    else:
        b, s = 1, int(rng.integers(1, longest))
    own = rng.integers(1, longest + 1, b) if kind in ("prompt", "decode") else np.full(b, longest)
    own[-1] = longest
    room = longest + int(rng.integers(0, 6)) if kind != "decode" or rng.random() < 0.5 else longest - 1
    if kind == "chunk" and rng.random() < 0.5:
        room = longest - s

    def f(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    new = 0 if kind == "shared" else s
    packed = kind != "shared" and rng.random() < 0.3
    inputs: list[Any] = [f(b, s, (n + 2 * kv) * h), None, None] if packed else [f(b, s, n * h), f(b, new, kv * h), f(b, new, kv * h)]
    inputs += [None, None] if kind == "prompt" and rng.random() < 0.5 else [f(b, kv, room, h), f(b, kv, room, h)]
    inputs += [(own - 1).astype(np.int32), np.array(longest, np.int32)]
    attrs: dict[str, Any] = {"num_heads": n, "kv_num_heads": kv}
    if rng.random() < 0.5:
        inputs += [f(longest + 3, 8), f(longest + 3, 8)]
        attrs |= {"do_rotary": 1, "rotary_interleaved": int(rng.integers(2))}
        inputs += [rng.integers(0, 4, (b, s))] if rng.random() < 0.3 else [None]
    else:
        inputs += [None, None, None]
    inputs += [f(int(rng.choice([1, b])), int(rng.choice([1, n])), s, longest)] if rng.random() < 0.3 else [None]
    sink = rng.random()
    inputs += [f(n)] if sink < 0.2 else [None]
    options = {"smooth_softmax": sink > 0.8, "local_window_size": rng.random() < 0.3, "softcap": rng.random() < 0.3,
               "scale": rng.random() < 0.2, "qk_output": rng.random() < 0.15}
    values = {"smooth_softmax": 1, "local_window_size": int(rng.integers(1, 8)), "softcap": 1.5, "scale": 0.3,
              "qk_output": int(rng.integers(1, 3))}
    attrs |= {k: values[k] for k, wanted in options.items() if wanted}
    if "local_window_size" not in attrs and rng.random() < 0.2:
        attrs["causal"] = 0
    return inputs, attrs, 4 if "qk_output" in attrs else 3


@pytest.mark.parametrize("kind", ["prompt", "decode", "chunk", "shared"])
@pytest.mark.parametrize("draw", range(6))
def test_group_query_attention(kind: str, draw: int) -> None:
    inputs, attrs, outputs = group_query(kind, fresh_rng())
    proto, feed = one("GroupQueryAttention", inputs, domain=MS, outputs=outputs, fixed=(6,), **attrs)
    got, want = ours(proto, feed), peer(proto, feed)
    if outputs == 4:  # beyond a row's own length ONNX Runtime leaves what was there
        beyond = np.arange(want[3].shape[-1]) > inputs[5][:, None, None, None]
        got[3], want[3] = (np.where(beyond, 0, x) for x in (got[3], want[3]))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def sized(b: int, s: int, total: int, room: int, own: Any) -> tuple[Any, dict[str, Any]]:
    """A file whose total length is that of a mask, as exporters of language models write it: every size is a symbol."""
    rng, (n, kv, h) = fresh_rng(), (4, 2, 16)
    feed = {"q": rng.standard_normal((b, s, n * h)), "k": rng.standard_normal((b, s, kv * h)), "v": rng.standard_normal((b, s, kv * h)),
            "past_k": rng.standard_normal((b, kv, room, h)), "past_v": rng.standard_normal((b, kv, room, h))}
    feed = {name: a.astype(np.float32) for name, a in feed.items()}
    feed["mask"] = (np.arange(total) < np.asarray(own)[:, None]).astype(np.int64)
    shapes = {"q": ["B", "S", n * h], "k": ["B", "S", kv * h], "v": ["B", "S", kv * h], "past_k": ["B", kv, "P", h],
              "past_v": ["B", kv, "P", h], "mask": ["B", "T"]}
    names = ["q", "k", "v", "past_k", "past_v", "lengths", "total", "cos", "sin"]
    nodes = [helper.make_node("Shape", ["mask"], ["sizes"], start=1, end=2), helper.make_node("Cast", ["sizes"], ["total"], to=6),
             helper.make_node("ReduceSum", ["mask", "axis"], ["sums"], keepdims=0), helper.make_node("Sub", ["sums", "axis"], ["less"]),
             helper.make_node("Cast", ["less"], ["lengths"], to=6),
             helper.make_node("GroupQueryAttention", names, ["y", "nk", "nv"], domain=MS, num_heads=n, kv_num_heads=kv, do_rotary=1)]
    table = np.arange(32 * h // 2, dtype=np.float32).reshape(32, -1) / 40
    weights = {"axis": np.array([1]), "cos": np.cos(table), "sin": np.sin(table)}
    return model(nodes, [info(k, a, shapes[k]) for k, a in feed.items()], ["y", "nk", "nv"], weights, domains=[MS]), feed


def test_one_compile_serves_prompts_and_steps_with_and_without_a_longer_buffer() -> None:
    proto, _ = sized(1, 1, 5, 4, [5])
    session = tw.compile(proto)
    for sizes in [(1, 1, 5, 4, [5]), (3, 1, 9, 8, [9, 4, 2]), (2, 1, 9, 20, [3, 9]), (2, 7, 7, 20, [7, 2]), (1, 4, 9, 5, [9])]:
        _, feed = sized(*sizes)
        for a, b in zip(session(*feed.values()), peer(proto, feed), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_caches_are_written_in_one_pass() -> None:
    """The past is copied to the present once: new rows go into the result's own memory."""
    proto, feed = sized(1, 2, 9, 20, [9])
    session = tw.compile(proto)
    session(*feed.values())
    assert session.executable is not None
    names = [launch.name for launch in session.executable.program.launches]
    assert any(n.startswith("scatter") for n in names) and not any(n.startswith("scatter") and "copy" in n for n in names)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("kind", ["PER_TENSOR", "PER_CHANNEL"])
@pytest.mark.parametrize("s", [1, 3])
def test_a_quantized_cache(bits: int, kind: str, s: int) -> None:
    rng, n, kv, h, past = fresh_rng(), 4, 2, 16, 4
    caches = [rng.integers(-128, 128, (1, kv, 9, h), np.int8) if bits == 8 else rng.integers(0, 256, (1, kv, 9, h // 2), np.uint8)
              for _ in range(2)]
    scales = [rng.uniform(0.03, 0.3, (1, kv, 1, h) if kind == "PER_CHANNEL" else (1,)).astype(np.float32) for _ in range(2)]
    inputs = [*(rng.standard_normal((1, s, w)).astype(np.float32) for w in (n * h, kv * h, kv * h)), *caches,
              np.array([past + s - 1], np.int32), np.array(past + s, np.int32), None, None, None, None, None, *scales]
    proto, feed = one("GroupQueryAttention", inputs, domain=MS, outputs=3, fixed=(6,), num_heads=n, kv_num_heads=kv, k_quant_type=kind,
                      v_quant_type=kind, kv_cache_bit_width=bits)
    for a, b in zip(ours(proto, feed), peer(proto, feed), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_a_cache_that_slides_through_prompts_and_steps() -> None:
    """It drops what is older than its window, all of its slack at once."""
    rng, n, kv, h, window, room = fresh_rng(), 4, 2, 16, 4, 6
    past, total = [np.zeros((1, kv, room, h), np.float32)] * 2, 0
    for s in (3, 1, 5, 1, 9):
        total += s
        inputs = [*(rng.standard_normal((1, s, w)).astype(np.float32) for w in (n * h, kv * h, kv * h)), *past,
                  np.array([total - 1], np.int32), np.array(total, np.int32), *rng.standard_normal((2, 32, 8)).astype(np.float32)]
        proto, feed = one("GroupQueryAttention", inputs, domain=MS, outputs=3, fixed=(6,), num_heads=n, kv_num_heads=kv, do_rotary=1,
                          local_window_size=window, sliding_window_cache=1)
        want = peer(proto, feed)
        held = total if total <= room else total - (room - window + 1) * -(-(total - room) // (room - window + 1))
        for a, b in zip(ours(proto, feed), want, strict=True):
            np.testing.assert_allclose(a[:, :, :held] if a.ndim == 4 else a, b[:, :, :held] if b.ndim == 4 else b, rtol=2e-5, atol=2e-5)
        past = want[1:]


def in_place(proto: Any, feed: dict[str, Any], shared: dict[str, str]) -> list[Any]:
    """What ONNX Runtime gives where results lie in the memory of inputs."""
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    binding, values = session.io_binding(), {n: ort.OrtValue.ortvalue_from_numpy(a.copy()) for n, a in feed.items()}
    for n, v in values.items():
        binding.bind_ortvalue_input(n, v)
    for o in session.get_outputs():
        binding.bind_ortvalue_output(o.name, values[shared[o.name]]) if o.name in shared else binding.bind_output(o.name)
    session.run_with_iobinding(binding)
    found: list[Any] = binding.copy_outputs_to_cpu()
    return found


@pytest.mark.parametrize("s", [1, 20])
def test_sparse_attention(s: int) -> None:
    """Two layouts of blocks of 16 keys for four heads."""
    rng, n, kv, h, total = fresh_rng(), 4, 2, 16, 20
    layouts = np.stack([np.eye(4, dtype=int), np.tril(np.ones((4, 4), int))])
    starts = np.pad(np.cumsum(layouts.sum(2), 1), ((0, 0), (1, 0))).astype(np.int32)
    columns = np.full((2, 10), -1, np.int32)
    for row, layout in zip(columns, layouts, strict=True):
        row[: layout.sum()] = np.nonzero(layout)[1]
    inputs = [*(rng.standard_normal((2, s, w)).astype(np.float32) for w in (n * h, kv * h, kv * h)),
              *rng.standard_normal((2, 2, kv, 64, h)).astype(np.float32), starts, columns, np.array([total], np.int32),
              np.array([total, total], np.int32), *rng.standard_normal((2, 64, 8)).astype(np.float32)]
    proto, feed = one("SparseAttention", inputs, domain=MS, outputs=3, fixed=(5, 6), num_heads=n, kv_num_heads=kv, sparse_block_size=16,
                      do_rotary=1)
    got, want = ours(proto, feed), in_place(proto, feed, {"y1": "x3", "y2": "x4"})
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a[:, :, :total], b[:, :, :total], rtol=2e-5, atol=2e-5)
