"""The one error that is the user's to mend, alone so that ``--help`` loads nothing else."""


class ConfigError(ValueError):
    """Input that cannot be used; the message is one line that says what to do."""
