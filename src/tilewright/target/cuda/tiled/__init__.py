"""Block programs: tiles spread over the warps of a thread block."""
