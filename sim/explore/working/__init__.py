"""Working: who carries out the tasks of a sweep, and what stands between them and it."""
