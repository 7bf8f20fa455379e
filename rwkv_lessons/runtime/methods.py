"""Where an operation's own function ends and one of its methods begins."""


def method_table(function):
    """Marks a function that returns one of an operation's methods by its name.

    A measurement of the operation's own function depends on the methods that it took, which its
    record names, and not on others that stand in this table: see records/fingerprint.py.
    """
    return function
