"""Running sums, selective scans and the gated delta rule."""
