"""`octavo bench peers`: other engines on the same workload, each in an environment of its own, by turns with ours."""
