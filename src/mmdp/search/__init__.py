"""Local search over policies: block coordinate ascent on a landscape.

A kind of policy brings a :class:`mmdp.search.landscape.Landscape`. Starts, ascents, objectives,
the price of a restriction and time limits are written once, over landscapes.
"""
