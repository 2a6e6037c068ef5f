"""``python -m recsys``: the commands, as torchrun starts them."""

from recsys.cli import main

main()
