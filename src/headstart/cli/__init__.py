"""The command line: one thin file a verb. Results go to stdout, everything else to stderr."""
