"""Norms, softmax, reductions and the backward passes of norms; GPU schedules in `cuda/`."""
