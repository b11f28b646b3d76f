"""Whether a command that may continue a run (`--continue`) has one to continue."""

from __future__ import annotations

import json

from pydantic import BaseModel

from fewtags.config.changes import changed_setting, settings_tree
from fewtags.engine.progress import is_main_process
from fewtags.engine.run_lock import LOCK_FILE, locked
from fewtags.engine.runfolder import RECORD_FILES, RunFolder, refuse_used_folder
from fewtags.errors import CheckpointError, ConfigError
from fewtags.text import flag


def can_continue(folder: RunFolder, settings: BaseModel, *, elsewhere: bool = False) -> bool:
    """Whether a folder has a run that began with these settings; False: a run can begin there.

    What a run left that was stopped before it began is removed, unless the run is to begin `elsewhere`.

    Raises:
        ConfigError: the run began with other settings, or the folder has something else.
        CheckpointError: another process is about to begin a run there, or the record of the run is damaged.
    """
    if not folder.has_begun:
        if is_main_process():
            content = {item.name for item in folder.path.iterdir()} if folder.path.is_dir() else set()
            if not content - {LOCK_FILE} or content - {LOCK_FILE} - set(RECORD_FILES):
                refuse_used_folder(folder.path)
            elif not elsewhere:
                with locked(folder.path):
                    folder.remove_record()
        return False
    try:
        record = json.loads((folder.path / "environment.json").read_text("utf-8"))
        began = record["settings"][folder.kind.settings]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"the record of the run in {folder.path} is damaged ({error}); start a new run."
        ) from None
    if change := changed_setting(began, settings_tree(settings)):
        raise ConfigError(
            f"{folder.path} has a run with other settings ({change}). Give the settings that it began with, or another "
            f"{flag('out')}."
        )
    return True
