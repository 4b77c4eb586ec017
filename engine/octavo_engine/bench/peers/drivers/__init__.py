"""Scripts for the peers' interpreters, which have no Octavo: nothing imports them, and they import nothing of ours."""
