"""Sorting, top-k and choosing a token; GPU schedules in `cuda/`."""
