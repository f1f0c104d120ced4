"""Everything that works without Airflow: stages, and what they are made of. Imports run down its layers only.

Operators, sensors and the command line belong beside it: they resolve connections, start a stage and tell what came of
it. Beside the packages stand `errors`, the one table of what is worth a retry, and `progress`, a stage's lines of
progress."""
