"""The deterministic simulator: virtual nodes that execute the shipped scripts."""
