"""Code generators: tile IR to LLVM IR and to PTX."""
