"""The best of several outputs of an item."""
