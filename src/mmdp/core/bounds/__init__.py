"""Upper bounds on the value of every policy.

==========  ==========  =============================================================
method      scope       description
==========  ==========  =============================================================
oracle      history     every model follows its own optimal policy
qmdp        history     the model is revealed after the first decision
pairs       history     disjoint pairs of models, each solved with a belief
best        smallest    these, then the Lagrangian dual (Markov) under a time limit
==========  ==========  =============================================================

"History" bounds every policy, including history-dependent ones; "Markov" bounds Markov policies,
such as those of CADP.

>>> import mmdp
>>> from mmdp.core.bounds import bound
>>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
>>> round(bound(two, 2, "oracle").value, 6), round(bound(two, 2).value, 6)
(8.0, 7.0)
"""

from __future__ import annotations

from mmdp.core.bounds.api import bound
from mmdp.core.bounds.portfolio import BOUND_METHODS
from mmdp.core.solution import Bound

__all__ = ["BOUND_METHODS", "Bound", "bound"]
