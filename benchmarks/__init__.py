"""Benchmarks: instances of the sizes of the paper, peers, and timing by interleaved runs."""
