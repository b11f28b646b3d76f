"""Errors that the user can fix. The message says what was expected, what was found, where, and what to do.

Every other exception is a bug of fewtags.
"""


class FewtagsError(Exception):
    """Base of all errors that a user can fix; the command line prints the message and exits with code 1."""


class DataError(FewtagsError):
    """An annotation file, an image or a label table is invalid."""


class ConfigError(FewtagsError):
    """A setting is unknown, out of range, or contradicts another."""


class ArgumentError(ConfigError, TypeError):
    """An argument in Python has an unknown name or another type than expected."""


class CheckpointError(FewtagsError):
    """A run folder, checkpoint or weight file cannot be used."""


class DiskError(FewtagsError, OSError):
    """A file cannot be written: its disk is full or read-only, or its folder was removed."""


class TrainingError(FewtagsError):
    """Training cannot continue, for example because the loss is not finite."""


class WorkerError(FewtagsError):
    """A process that reads photos was killed, or sends nothing."""
