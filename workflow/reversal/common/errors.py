"""The error that a user's mistake raises: one line that says what is wrong, where, and what would be right."""


class UserError(ValueError):
    """Something in the configuration, the data or a model file that its owner can mend."""
