"""The native runtime in host code: barriers, the walk through a schedule, threads, and the layouts it shares with Python."""
