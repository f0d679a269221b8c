"""Models: the only room where torch, transformers and their like are imported, and only when a model is loaded."""
