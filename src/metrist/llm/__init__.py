"""Large language models behind one protocol: conversations in, completions out, in order."""
