"""What stages do in between: new DDL is read and applied, tables are brought in line, new ones taken up, windows run.

What only one stage does belongs to that stage."""
