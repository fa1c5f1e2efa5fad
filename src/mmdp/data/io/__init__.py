"""Files of models (CSV in the paper's columns, Parquet, npz, other tools) and of policies.

A model's table has one row per transition p^m_t(s' | s, a) with its reward. Two sets of
column names are known:

===========  ===============  ==============================================
meaning      paper's column   tidy column (ids, or labels in any text)
===========  ===============  ==============================================
s            idstatefrom      state
a            idaction         action
s'           idstateto        next_state
m            idoutcome        model (may be left out: one model)
t            idtime           time (may be left out: the same at all times)
p            probability      probability
r            reward           reward
===========  ===============  ==============================================

Ids and times count from 0. Files read along with a table ``NAME.csv`` or ``NAME.parquet``, each as
``NAME_x.csv`` if that exists, else as ``x.csv``, with columns ``state`` and ``model``, by label
or id, or as named here:

- ``initial.csv``: ``idstate,probability`` or ``idoutcome,idstate,probability``; states left out
  have probability 0.
- ``parameters.csv``: ``parameter,value``. Known are ``discount``; ``actions``, the number of
  actions if some are allowed nowhere; ``allow_missing`` (1: an action may be missing in
  some models); ``unit`` of rewards; ``quantity``, the name of a return; ``name`` and
  ``citation`` of the model.
- ``weights.csv``: ``idoutcome,weight``; models left out have weight 0.
- ``terminal.csv``: ``idstate,value`` or ``idoutcome,idstate,value``; 0 if left out.
- ``labels.csv``: ``kind,id,label`` with kind ``state``, ``action`` or ``model``.
- ``times.csv``: ``time,age``, or another name for the labels of decisions 0, 1, ...
- ``draws.csv``: ``idoutcome`` and one column per uncertain parameter.

``training.csv`` and ``test.csv`` of one folder hold different models, so the plain files
about models (weights, draws, labels of models, values by model) are not used for
``test.csv``: these are read from ``test_weights.csv`` and so on. A file with nothing but its
header means "not given". Parquet files that :func:`save` wrote hold all this themselves.

Files of other tools:

- ``.pomdpx`` (APPL): hidden variables are the model, observed ones the state; several make a
  product, with labels like ``low/dry``. If hidden variables change, so does the model.
- ``.pomdp`` (Cassandra): every state is seen as one observation. The first decision is taken
  before anything is seen: a start that is spread over several observations becomes one state,
  ``start``.

A file that is not an MMDP (a hidden part that changes with the action or the state, a state
observed with errors) is refused.

Ids come in the order of the numbers; labels in the order of first appearance (a categorical
column: in the order of its categories), in the ``state`` column before ``next_state``.
"""

from mmdp.data.io.models import load, save
from mmdp.data.io.npz import save_shards
from mmdp.data.io.policies import load_certificate, load_objective, load_policy, save_policy
from mmdp.data.io.reading import load_features, load_groups
from mmdp.data.io.tables import from_frame, to_frame
from mmdp.data.io.writing import write_all_atomic, write_atomic
from mmdp.data.schema import PAPER_COLUMNS

__all__ = [
    "PAPER_COLUMNS",
    "from_frame",
    "load",
    "load_certificate",
    "load_features",
    "load_groups",
    "load_objective",
    "load_policy",
    "save",
    "save_policy",
    "save_shards",
    "to_frame",
    "write_all_atomic",
    "write_atomic",
]
