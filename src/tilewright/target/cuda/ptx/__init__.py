"""PTX as text, as a control-flow graph, and NVIDIA's assembler."""
