"""Matrix products, grouped and integer products, convolution."""
