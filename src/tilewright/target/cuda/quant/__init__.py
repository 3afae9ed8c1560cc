"""Products with packed matrices written as PTX."""
