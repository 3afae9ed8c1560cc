"""What GPU schedules share: how a kernel is run, the list of templates, block programs, loops in one kernel."""
