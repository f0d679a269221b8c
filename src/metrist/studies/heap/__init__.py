"""The HEAP study: which criteria a preference model learns alone, together, and without having seen them."""
