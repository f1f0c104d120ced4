"""Whether rows of one table fit into another. Pure: `compatibility` finds what differs, `casts` says which types fit,
`policy` makes a verdict of it, `report` tells it; `drift` and `change_effect` say what has become of a table since its
plan was made. Why a copy is read again although its table is as it was, `following.reconcile` says.

Reading schemas from a server belongs to `server.schema_reading`; asking the gate, to `following.schema_gate`."""
