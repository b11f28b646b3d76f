"""Errors the user can fix. A message says what was expected, what was found, where, and what to do.

Any other exception is a bug in this library.
"""


class FewtagsError(Exception):
    """Base of all errors the user can fix; the command line prints the message and exits with code 1."""


class DataError(FewtagsError):
    """An annotation file, an image or a label table is invalid."""


class ConfigError(FewtagsError):
    """A setting is unknown, out of range, or contradicts another."""


class CheckpointError(FewtagsError):
    """A run folder, checkpoint or weight file cannot be used."""


class TrainingError(FewtagsError):
    """Training cannot continue, for example because the loss is not finite."""
