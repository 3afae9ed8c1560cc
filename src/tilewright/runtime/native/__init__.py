"""The native runtime as LLVM IR text: barriers, the walk through a schedule, threads, and the layouts it shares with Python."""
