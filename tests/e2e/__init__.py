"""End-to-end tests: a torch module goes through the whole compiler to machine code and is called."""
