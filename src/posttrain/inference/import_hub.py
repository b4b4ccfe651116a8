"""A model of the Hugging Face hub, where a network exists: configuration, tokenizer, safetensors, nothing else."""

from __future__ import annotations

import fnmatch
from pathlib import Path

from posttrain.inference.import_errors import ModelSourceError
from posttrain.inference.import_resources import require_disk

_WANTED = (
    "*.safetensors",
    "*.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
_ANSWER_S = 20.0  # for the first answer of the hub; the download itself is bounded by the client's own time-outs


def fetch_hub(repository: str, folder: Path) -> None:
    """Downloads `org/name` into `folder` (exists).

    Raises ModelSourceError where the hub can not be reached or has no such model.
    """
    try:
        from huggingface_hub import HfApi, snapshot_download
        from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
    except ImportError:
        raise ModelSourceError(
            f"{repository}: the hub needs a package that is missing; pip install huggingface_hub"
        ) from None
    try:
        files = HfApi().model_info(repository, files_metadata=True, timeout=_ANSWER_S).siblings or []
        wanted = [f for f in files if "/" not in f.rfilename and any(fnmatch.fnmatch(f.rfilename, p) for p in _WANTED)]
        if not any(f.rfilename.endswith(".safetensors") for f in wanted):
            raise ModelSourceError(f"{repository}: has no safetensors weights; choose another model")
        require_disk(folder, sum(f.size or 0 for f in wanted), repository)
        snapshot_download(repository, local_dir=folder, allow_patterns=[f.rfilename for f in wanted])
    except ModelSourceError:
        raise
    except GatedRepoError:
        raise ModelSourceError(
            f"{repository}: needs an accepted licence; accept it on the hub and log in (`hf auth login`)"
        ) from None
    except RepositoryNotFoundError:
        raise ModelSourceError(
            f"{repository}: the hub has no such model; check the spelling, or give a folder or a GGUF file"
        ) from None
    except (
        Exception
    ) as error:  # boundary: the client raises whatever its HTTP library does; all of it means "not downloaded"
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise ModelSourceError(
            f"{repository}: the hub can not be reached ({reason}); where there is no network, give a "
            "folder, a GGUF file or smollm2-135m"
        ) from error
