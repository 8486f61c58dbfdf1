"""Several instances of the monitor on one PostgreSQL and bucket."""
