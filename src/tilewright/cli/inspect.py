"""inspect"""

import argparse


def arguments(parser: argparse.ArgumentParser) -> None: ...
