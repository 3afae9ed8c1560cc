"""The ATen table: one file a family of functions."""
