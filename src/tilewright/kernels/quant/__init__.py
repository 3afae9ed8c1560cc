"""Products with and lookups in packed matrices, and how they are laid out; GPU schedules in `cuda/`."""
