"""The array API's functions and NumPy's commonly used rest, on `tw.Array`. `functions.py` offers them under `tw.`."""
