"""Questions to the Hugging Face hub, with its refusals as sentences that name the repository."""

from collections.abc import Callable
from typing import TypeVar

from clover_local.errors import CloverError

T = TypeVar("T")


def ask(repo: str, question: Callable[[], T]) -> T:
    """What the hub answers to a call of huggingface_hub; raises CloverError when it does not."""
    from huggingface_hub import errors

    transport: type[Exception] = vars(errors)["HTTPError"]  # of requests or httpx, by the library's version
    try:
        return question()
    except errors.GatedRepoError as error:
        raise CloverError(
            f"{repo} must be unlocked on huggingface.co first", "accept its terms, then set HF_TOKEN"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise CloverError(
            f"there is no model {repo} on the hub", "check the name; a private one needs HF_TOKEN"
        ) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise CloverError(
            f"{repo} is not in the cache, and the hub cannot be reached or must not be asked",
            "check the network, --offline and HF_HUB_OFFLINE",
        ) from error
    except (transport, OSError) as error:
        if (
            isinstance(error, OSError) and error.errno is not None
        ):  # requests' errors are OSErrors without one
            raise CloverError(f"{repo} could not be stored in the cache: {error.strerror}") from error
        raise CloverError(
            f"the hub did not deliver {repo}: {first_line(error)}", "run the same command again"
        ) from error


def first_line(error: Exception) -> str:
    """The first line of an error's text, or its name where it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
