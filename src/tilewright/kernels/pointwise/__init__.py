"""Elementwise regions, copies, transposes, concatenation; GPU schedules in `cuda/`."""
