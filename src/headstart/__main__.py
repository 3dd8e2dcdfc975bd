"""``python -m headstart`` is the command line."""

from headstart.cli.app import main

main()
