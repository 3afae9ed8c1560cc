"""Arrays on a GPU: memory and views, elementwise kernels, and the functions of `tw.` over them."""
