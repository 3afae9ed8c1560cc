"""Saved sessions: the file, programs as plain data, and the key under which machine code is authenticated."""
