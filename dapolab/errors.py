"""The one error that is the user's to mend, alone so that ``--help`` loads nothing else."""


class ConfigError(ValueError):
    """Input that cannot be used; the message is one line that says what to do."""

    def __init__(self, message: str) -> None:
        # names and values of the user's file may hold line breaks
        super().__init__(" ".join(message.split()))
