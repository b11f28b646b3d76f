"""Errors that are the user's to mend: what was expected, what came, where, what to do.

Anything else that goes wrong is our own bug and surfaces as an ordinary exception.
"""


class FewtagsError(Exception):
    """Base of every error a user can mend; the command line prints it as one sentence, exit code 1."""


class DataError(FewtagsError):
    """An annotation file, an image or a label table is not what it should be."""


class ConfigError(FewtagsError):
    """A setting is unknown, out of range, or contradicts another."""


class CheckpointError(FewtagsError):
    """A run folder, checkpoint or weight file cannot be used as asked."""


class TrainingError(FewtagsError):
    """Training cannot go on, for example because the loss is not a number."""
