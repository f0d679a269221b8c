"""`python -m metrist`, which is how `accelerate launch -m metrist` starts it too."""

from metrist.cli.app import main

main()
