"""The command line: `tilewright demo | bench | inspect | doctor | cache`. One module a command; `main` is the entry point."""
