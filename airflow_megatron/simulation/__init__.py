"""A cluster, its faults and its clock, simulated; the restart policy that runs in it is the real one."""
