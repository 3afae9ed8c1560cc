"""Attention forward, backward and over 8-bit caches, and rotary embedding; GPU schedules in `cuda/`."""
