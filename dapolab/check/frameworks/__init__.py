"""One file a framework: what its settings mean, and in which loop."""
