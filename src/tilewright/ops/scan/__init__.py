"""Selective scans and the gated delta rule."""
