"""Upper bounds: how much better could any policy be?

==========  ==========  =============================================================
method      bounds      what it is
==========  ==========  =============================================================
oracle      history     every model plays its own optimal policy
qmdp        history     the model is revealed after the first decision
pairs       history     pairs of models play together, a belief between the two
dual        Markov      models play alone and pay prices for acting differently
pair-dual   Markov      pairs play together and pay prices; the tightest
lp          Markov      the best prices for ``dual``, by HiGHS (small models)
best        the least   a portfolio under a time limit
==========  ==========  =============================================================

"History" bounds every policy, including those that learn; "Markov" bounds policies of time
and state, such as CADP's.

>>> import mmdp
>>> from mmdp.bounds import bound
>>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
>>> round(bound(two, 2, "oracle").value, 6), round(bound(two, 2).value, 6)
(8.0, 7.0)
"""

from __future__ import annotations

from mmdp.bounds.front import bound
from mmdp.bounds.portfolio import BOUNDS
from mmdp.solution import Bound

__all__ = ["BOUNDS", "Bound", "bound"]
