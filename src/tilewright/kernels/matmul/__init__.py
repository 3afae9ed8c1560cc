"""Matrix products: the problem (`product.py`), its schedules for CPUs, grouped products of experts; GPU schedules in `cuda/`."""
