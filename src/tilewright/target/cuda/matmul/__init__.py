"""Matrix products written as PTX."""
