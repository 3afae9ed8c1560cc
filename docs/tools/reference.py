"""The API reference: one Markdown page for each part of `tw`, made from signatures, docstrings and examples that are run."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Collection
from typing import Any

from examples import SHOWN, example

COMPILING = ["compile", "load", "digest", "quantize", "Session", "Dim", "load_onnx", "from_onnx", "export_onnx", "from_torch",
             "torch_function", "explain"]
MODELS = ["load_llm", "LLM"]
KERNELS = ["kernel", "host_op", "native_op"]
TRANSFORMS = ["jit", "grad", "value_and_grad", "vjp", "jvp", "jacobian", "hessian", "vmap", "vectorize", "checkpoint", "custom_jvp",
              "custom_vjp", "custom_op", "cond", "scan", "while_loop", "fori_loop", "lazy", "set_mode"]
MODULES = {"linalg": "Linear algebra", "fft": "Fourier transforms", "random": "Random numbers", "optim": "Optimizers",
           "training": "Training", "onnx": "ONNX", "splat": "Gaussian splats", "lang": "The language of kernels"}
PAGE_OF = {"linalg": "linear-algebra", "fft": "linear-algebra", "random": "arrays", "optim": "training", "training": "training",
           "onnx": "onnx", "splat": "splats", "lang": "kernels-of-your-own"}


def signature(value: Any) -> str:
    try:
        text = str(inspect.signature(value))
    except (TypeError, ValueError):
        return "(…)"
    text = re.sub(r"\(self\b[^,)]*(, )?", "(", text).replace("'", "").replace(" -> None", "")
    return text.replace(": Any", "").replace(" -> Any", "").replace(" = ", "=")


def declaration(name: str, value: Any) -> list[str]:
    """`tw.name(...)`, a parameter a line where it is long."""
    text = f"tw.{name}{signature(value)}"
    if len(text) <= 96:
        return [text]
    inside, _, result = text.partition("(")[2].rpartition(")")
    parts, depth = [""], 0
    for c in inside:
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [f"tw.{name}(", *(f"    {p.strip()}," for p in parts), f"){result}"]


def paragraphs(text: str) -> str:
    """A docstring as Markdown: doctest lines and indented blocks become fenced code, all else stays as it is."""
    out, code = list[str](), list[str]()
    for line in [*text.splitlines(), ""]:
        in_code = line.startswith((">>> ", "... ", "    ")) or (bool(code) and bool(line.strip()) and code[0].startswith(">>> "))
        if in_code:
            code.append(line)
        else:
            if code:
                indent = min(len(c) - len(c.lstrip()) for c in code if c.strip())
                out += ["", "```python", *(c[indent:] for c in code), "```", ""]
                code = []
            out.append(line.replace("<", "&lt;").replace("|", "\\|") if "`" not in line else line)
    return "\n".join(out).strip()


def entry(name: str, value: Any, level: str = "##", examples: Collection[str] | None = None) -> list[str]:
    """One function or class."""
    if inspect.isclass(value):
        lines = [f"{level} tw.{name} {{#{anchor(name)}}}", "", paragraphs(inspect.getdoc(value) or ""), ""]
        for member in sorted(m for m in vars(value) if not m.startswith("_")):
            thing = inspect.getattr_static(value, member)
            doc = inspect.getdoc(getattr(value, member)) or ""
            if isinstance(thing, property | functools.cached_property):
                lines += [f"- **{member}**: {first(doc)}"]
            elif callable(getattr(value, member)) and not issubclass(value, Exception):
                lines += [f"- **{member}**`{signature(getattr(value, member))}`: {first(doc)}"]
        return [*lines, ""]
    lines = [f"{level} tw.{name} {{#{anchor(name)}}}", "", "```python", *declaration(name, value), "```", "",
             paragraphs(inspect.getdoc(value) or ""), ""]
    if (examples is None or name in examples) and (shown := example(name, value)):
        lines += ["```python", f">>> {shown[0]}", *shown[1].splitlines(), "```", ""]
    return lines


def anchor(name: str) -> str:
    return name.replace(".", "-")


def first(doc: str) -> str:
    return " ".join(doc.split("\n\n")[0].split()).replace("|", "\\|")


def pages(examples: Collection[str] | None = None) -> dict[str, str]:
    """name of the page -> Markdown. `examples` names the functions whose examples are run and shown; None: all."""
    import tilewright as tw

    public = {n: getattr(tw, n) for n in tw.__all__ if not n.startswith("__")}
    errors = [n for n, v in public.items() if inspect.isclass(v) and issubclass(v, Exception)]
    named = {"compile": ("Compiling and running", COMPILING), "models": ("Language models", MODELS), "kernels": ("Kernels", KERNELS),
             "transforms": ("Transforms and control flow", TRANSFORMS), "errors": ("Errors", sorted(errors))}
    taken = {n for _, names in named.values() for n in names} | {"Array"}
    functions = sorted(n for n, v in public.items() if n not in taken and callable(v) and not inspect.isclass(v))
    out: dict[str, str] = {}
    for page, (title, names) in named.items():
        lines = [f"# {title}", ""]
        for name in names:
            lines += entry(name, public[name], examples=examples)
        out[page] = "\n".join(lines)
    lines = ["# Functions of arrays", "", "Each takes arrays of Tilewright, NumPy or PyTorch, and traced values inside `tw.jit`,",
             "`tw.grad` and `tw.vmap`. In the examples", "", f"`{SHOWN}`.", ""]
    lines += [" · ".join(f"[{n}](#{anchor(n)})" for n in functions), ""]
    for name in functions:
        lines += entry(name, public[name], "###", examples)
    out["functions"] = "\n".join(lines)
    out["array"] = "\n".join(["# Arrays", "", *entry("Array", public["Array"])])
    for module, title in MODULES.items():
        inside = getattr(tw, module)
        lines = [f"# {title}: tw.{module}", "", first(inspect.getdoc(inside) or ""), "", f"See [the manual](../{PAGE_OF[module]}.md).", ""]
        for name in sorted(inside.__all__):
            value = getattr(inside, name)
            if callable(value):
                lines += entry(f"{module}.{name}", value, examples=examples)
        out[module] = "\n".join(lines)
    everything = {n for text in out.values() for n in re.findall(r"^#+ tw\.([\w.]+)", text, re.M)}
    missing = [n for n, v in public.items() if callable(v) and n not in everything | DTYPES]
    assert not missing, f"not in the reference: {missing}"
    return out


DTYPES = {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float16",
          "bfloat16", "float32", "float64", "complex64", "complex128"}
