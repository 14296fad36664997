"""Everything between an MTP head's checkpoint and its bundle: float graph, ranges, quantised graph, samples, checks."""
