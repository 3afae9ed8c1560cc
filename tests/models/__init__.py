"""Model builders that tests share: small, random weights, every family the compiler must take."""
