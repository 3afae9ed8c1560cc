"""Convolution and pooling; which values lie channels last; GPU schedules in `cuda/`."""
