"""Random numbers and distributions."""
