"""The ways of hiding a subject, and the one whose results lead."""

NAMES = ("gaussian", "mask", "swap")


def main(present):
    """The first of the corruptions that are `present`; that of ROME where none is."""
    present = set(present)
    return next((name for name in NAMES if name in present), NAMES[0])
