"""Language models: loading, tokenizers, chat templates, generation."""
