"""The error for what a user can fix: one line that says what is wrong, where, and what to do."""


class UserError(ValueError):
    """Something wrong in the configuration, the data or a model file that the user can fix."""
