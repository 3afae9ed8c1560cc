"""What every layer uses: dtypes, dims, errors, configuration, files."""
