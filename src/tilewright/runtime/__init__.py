"""Running compiled programs: sessions, calls, states, threads, saved sessions; `native/` and `cuda/` below."""
