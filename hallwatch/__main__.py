"""`python -m hallwatch` is `hallwatch`."""

from hallwatch.cli import main

main()
