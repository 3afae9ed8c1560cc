"""The graph: values, nodes, printer, parser, verifier, interpreter."""
