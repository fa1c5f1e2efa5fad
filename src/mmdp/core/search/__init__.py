"""Local search over policies: block coordinate ascent in the search space of a policy class.

Each policy class has a :class:`mmdp.core.search.space.SearchSpace`. Initial policies, ascents,
objectives, the restriction cost and time limits are implemented once for all search spaces.
"""
