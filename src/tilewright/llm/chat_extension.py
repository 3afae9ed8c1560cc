"""The `{% generation %}` tag of Hugging Face's templates: it marks the assistant's words for training and prints its body as it is."""

from __future__ import annotations

from typing import Any


def generation_extension() -> Any:
    """The jinja2 extension class (made here, so that jinja2 is imported only when a chat begins)."""
    from jinja2 import nodes
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}

        def parse(self, parser: Any) -> nodes.Node | list[nodes.Node]:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    return Generation
