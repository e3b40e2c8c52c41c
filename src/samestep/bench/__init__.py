"""The benchmark: cases, peers, the limit of the machine, and what was measured; `samestep bench` runs it."""
