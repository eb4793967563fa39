"""`python -m paceline_cli`: the program."""

from paceline_cli import main

main()
