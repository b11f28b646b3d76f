"""A folder for the hub of Hugging Face: a timm model with its card, and its upload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewtags.engine.model import ModelInfo
from fewtags.engine.model_card import CARD_FILE, is_unedited, model_card, read_facts
from fewtags.errors import ConfigError, FewtagsError
from fewtags.files import write_text


class HubError(FewtagsError):
    """The hub cannot be reached, or refuses an upload."""


def export_hub(run: Path, info: ModelInfo, folder: Path) -> None:
    """Write the card of a folder that `export_timm` made.

    A card of the run folder that a person has edited is copied; otherwise the card says how timm loads the model.
    """
    own = run / CARD_FILE
    if own.exists() and not is_unedited(run, info):
        write_text(folder / CARD_FILE, own.read_text("utf-8"))
        return
    usage = (
        "import timm, torch",
        "",
        'model = timm.create_model("hf-hub:OWNER/NAME", pretrained=True).eval()  # or "local-dir:FOLDER"',
        "data = timm.data.resolve_model_data_config(model)",
        "probability = model(timm.data.create_transform(**data)(photo)[None]).sigmoid()",
        "# thresholds: config.json, fewtags.thresholds",
    )
    card = model_card(read_facts(run, info, usage))
    write_text(folder / CARD_FILE, card.replace("library_name: fewtags", "library_name: timm", 1))


def push_folder(folder: Path, repository: str, *, private: bool = True, api: Any = None) -> str:
    """Upload a folder to a repository of the hub, which is made if it does not exist; return its address.

    Args:
        folder: the folder.
        repository: "owner/name" or "name".
        private: whether a new repository is private.
        api: an `HfApi`; default: one with the login of huggingface_hub.

    Raises:
        ConfigError: the name of the repository is not valid.
        HubError: there is no login or no network, or the hub refuses.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError

    api = HfApi() if api is None else api
    try:
        address = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message="Export of fewtags")
    except HFValidationError as error:
        raise ConfigError(f"--push {repository}: {error}") from error
    except Exception as error:  # the errors of its HTTP client depend on the version of huggingface_hub
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise HubError(
            f"{folder} could not be uploaded to {repository}: {reason.rstrip('.')}. Log in with `hf auth login` and "
            "give the same command again; the folder itself is complete."
        ) from error
    return str(address)
