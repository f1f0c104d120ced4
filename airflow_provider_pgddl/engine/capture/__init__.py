"""What is kept of changes while they happen: the change log of rows, by triggers (`change_log`) or from a slot
(`slot_log`, which `slot_stream` reads), the direct trigger's function, the log of DDL (`ddl_log`, from a queue or a
slot of its own), and the triggers of the fence that keeps writers out (`change_log`); when it stands,
`swapping.across` says.

Reading a log into a copy belongs to `rows`; taking a table under capture as a stage does, to `following`."""
