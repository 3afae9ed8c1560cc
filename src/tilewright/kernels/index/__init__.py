"""Gathers and scatters; GPU schedules in `cuda/`."""
