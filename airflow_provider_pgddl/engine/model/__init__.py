"""Values that travel between modules, processes and machines: names, tables, plans, ranges.

They know no connection, no parser and no file. What reads or writes them lies elsewhere."""
