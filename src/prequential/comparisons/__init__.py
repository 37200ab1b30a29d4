"""Several learners on one stream: running them, their tables, Table 1 of the paper."""
