"""The same search by other tools, each in a process of its own, over the rows of the same PostgreSQL servers."""
