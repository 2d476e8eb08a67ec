"""Checkpoints on the Hugging Face hub, or on a server that speaks its language: `hf://owner/name` becomes a folder.

Downloading is `huggingface_hub`'s business, which is imported when an address asks for it and not before: its cache
(shared with transformers and others), its environment variables (HF_HOME, HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE), its
progress bars. Here is which files are wanted, that they are of one commit and whole, and what to say when they are not.

A file is the unit that survives an interruption: huggingface_hub goes on with a file after a lost connection, and keeps
nothing of one when the process ends.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from glob import escape
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from pipeline.errors import SourceError, StorageError
from pipeline.files import is_inner
from pipeline.formats import Fetched, UnreachableError
from pipeline.terminal import say
from pipeline.units import show_bytes
from plugins.formats.hub.files import SCHEME, SETTINGS, UNWANTED, Address, settings, weights
from plugins.formats.hub.preview import outline

CONFIG = "config.json"
INSTALL = "pip install huggingface_hub"
TIMEOUT_S = 30.0  # for an answer to begin


@dataclass(frozen=True)
class Hub:
    """A `pipeline.formats.Remote`.

    Attributes:
        endpoint: the server; None for HF_ENDPOINT, or else huggingface_hub's own.
        cache: folder that keeps downloads; None for the hub's own (HF_HOME, HF_HUB_CACHE).
        offline: use only what the cache holds already, as HF_HUB_OFFLINE=1 does.
    """

    scheme: ClassVar[str] = SCHEME

    endpoint: str | None = None
    cache: str | None = None
    offline: bool = False

    def fetch(self, source: str, *, whole: bool) -> Fetched:
        """See `pipeline.formats.Remote`. Asked again, it gives the same commit for as long as the process lives.

        Raises:
            SourceError: no such repository, revision or file.
            UnreachableError: huggingface_hub is not installed; no permission, no answer; or, offline, not in the cache.
            StorageError: the cache has too little space.
        """
        address = Address.parse(source)
        if find_spec("huggingface_hub") is None:
            raise UnreachableError(f"{address}: needs the package huggingface_hub, which is not installed: {INSTALL}")
        found = _fetch(self, address, whole)
        if isinstance(found, UnreachableError):
            raise found
        return found


@cache
def _fetch(hub: Hub, address: Address, whole: bool) -> Fetched | UnreachableError:
    """For a plan, which is made several times, nobody who did not answer is asked again: the error is kept."""
    from huggingface_hub import constants

    try:
        return _cached(hub, address, whole) if hub.offline or constants.HF_HUB_OFFLINE else _online(hub, address, whole)
    except UnreachableError as why:
        if whole:
            raise
        return why


def _online(hub: Hub, address: Address, whole: bool) -> Fetched:
    from huggingface_hub import HfApi

    info = _asked(hub, address, lambda: HfApi(hub.endpoint).model_info(
        address.repo, revision=address.revision, files_metadata=True, timeout=TIMEOUT_S
    ))  # fmt: skip
    sizes = {s.rfilename: s.size or 0 for s in info.siblings or ()}
    if astray := next((name for name in sizes if not is_inner(name)), None):
        raise SourceError(f"{address}: the hub lists a file {astray!r:.200}, which would lie outside the repository")
    commit = str(info.sha)
    small = {name: _one(hub, address, commit, name) for name in settings(address, sizes)}
    if address.path and not address.is_file and not any(n.startswith(address.prefix) for n in sizes):
        raise SourceError(f"{address}: the repository has no folder {address.path!r}")
    root = _root(next(iter(small.items()))) if small else Path()
    large = {name: sizes[name] for name in weights(address, sizes, root)}
    missing = {name: size for name, size in large.items() if not _has(hub, address, commit, name)}
    if missing and not whole:
        return _outlined(hub, address, commit, small, large, missing)
    _room(hub, address, missing)
    if missing:
        say(f"{address.at(commit)}: downloading {_much(missing)} into {_cache_folder(hub)}")
    for number, name in enumerate(missing, 1):
        _of_size(address, _one(hub, address, commit, name), missing[name])
        if not sys.stderr.isatty():  # a terminal has seen bars
            say(f"{number} of {len(missing)} files, {name}, {show_bytes(missing[name])}")
    root = _confirmed(hub, address, commit, [*small, *large])
    return Fetched(_entry(root, address, list(large)), address.at(commit))


def _outlined(
    hub: Hub, address: Address, commit: str, small: Mapping[str, Path], large: Mapping[str, int],
    missing: Mapping[str, int],
) -> Fetched:  # fmt: skip
    """What a plan needs: settings and headers."""
    if address.is_file:
        raise SourceError(
            f"{address}: {_much(missing)}, which have to be there before they can be planned; the same command without "
            "`plan` downloads them and goes on, and with stages=[load] it downloads them only"
        )
    root = outline(
        small, large, lambda name, count: _asked(hub, address, lambda: _head(hub, address, commit, name, count))
    )
    origin = f"{address.at(commit)}, {_much(missing)} to download"
    return Fetched(_entry(root, address, list(large)), origin, whole=False)


def _cached(hub: Hub, address: Address, whole: bool) -> Fetched:
    """What the cache holds of it; for a plan, config.json alone will do.

    Raises:
        UnreachableError: nothing, or not all of it.
    """
    if not (_cache_folder(hub) / f"models--{address.repo.replace('/', '--')}").is_dir():  # importing takes longer
        raise UnreachableError(f"{address}: {_not_there(hub)}")
    from huggingface_hub import snapshot_download

    prefix = escape(address.prefix)
    wanted = [escape(address.path)] if address.is_file else [f"{prefix}{p}" for p in SETTINGS]
    unwanted = [] if address.is_file else [f"{prefix}*/*", *(f"{prefix}{p}" for p in UNWANTED)]
    root = Path(_asked(hub, address, lambda: snapshot_download(
        address.repo, revision=address.revision, cache_dir=hub.cache, local_files_only=True,
        allow_patterns=wanted, ignore_patterns=unwanted,
    )))  # fmt: skip
    names = [p.relative_to(root).as_posix() for p in sorted(root.rglob("*")) if p.is_file()]
    try:
        large = weights(address, names, root)
    except SourceError as why:
        settings = root / address.path / CONFIG
        if not whole and not address.is_file and settings.is_file():
            return Fetched(settings, f"{address.at(root.name)}, of which the cache has no weights", whole=False)
        text = f"{why} (offline, in {root}); without hub.offline=true the rest is downloaded"
        raise UnreachableError(text) from None
    return Fetched(_entry(root, address, large), address.at(root.name))


def _one(hub: Hub, address: Address, commit: str, name: str) -> Path:
    """One file, downloaded unless the cache has it."""
    from huggingface_hub import hf_hub_download

    return Path(_asked(hub, address, lambda: hf_hub_download(
        address.repo, name, revision=commit, cache_dir=hub.cache, endpoint=hub.endpoint
    )))  # fmt: skip


def _of_size(address: Address, path: Path, nbytes: int) -> None:
    """Throws a file away that is not what the repository's list says, or it would be taken for whole ever after.

    Raises:
        SourceError: it is another size.
    """
    found = path.stat().st_size
    if found != nbytes:
        path.resolve().unlink()
        path.unlink(missing_ok=True)
        raise SourceError(
            f"{address}: {path.name} has {found:,} bytes, not the {nbytes:,} that the hub lists; try again"
        )


def _has(hub: Hub, address: Address, commit: str, name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(address.repo, name, hub.cache, commit), str)


def _confirmed(hub: Hub, address: Address, commit: str, names: Iterable[str]) -> Path:
    """The snapshot, everything in it; this also notes which commit the revision is, so that it is found offline.

    Raises:
        SourceError: the revision has moved on since it was asked for.
    """
    from huggingface_hub import snapshot_download

    root = Path(_asked(hub, address, lambda: snapshot_download(
        address.repo, revision=address.revision, cache_dir=hub.cache, endpoint=hub.endpoint,
        allow_patterns=[escape(n) for n in names], tqdm_class=_silent(),
    )))  # fmt: skip
    if root.name != commit:
        raise SourceError(f"{address}: moved from {commit} to {root.name} while it was downloaded; try again")
    return root


def _head(hub: Hub, address: Address, commit: str, name: str, count: int) -> bytes:
    """The first `count` bytes of a file, or all of it; no more is read even from a server that knows no ranges."""
    from huggingface_hub import hf_hub_url

    utils: Any = import_module("huggingface_hub.utils")  # documented there, and not marked as exported
    url = hf_hub_url(address.repo, name, revision=commit, endpoint=hub.endpoint)
    headers = {**utils.build_hf_headers(), "Range": f"bytes=0-{count - 1}", "Accept-Encoding": "identity"}
    found = bytearray()
    with utils.get_session().stream("GET", url, headers=headers, timeout=TIMEOUT_S) as response:
        utils.hf_raise_for_status(response)
        for part in response.iter_bytes():
            found += part
            if len(found) >= count:
                break
    return bytes(found[:count])


def _asked(hub: Hub, address: Address, call: Callable[[], Any]) -> Any:
    """What `call` gives.

    Raises:
        SourceError: it is not there.
        UnreachableError: that could not be found out. Either says what can be done about it.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    where = hub.endpoint or constants.ENDPOINT
    failures: Any = HfHubHTTPError.__bases__  # errors of the HTTP client that huggingface_hub uses, and OSError
    error: type[SourceError] = UnreachableError
    try:
        return call()
    except GatedRepoError:
        text = f"is gated: accept its terms on its page at {where}/{address.repo}, and set HF_TOKEN to a token of yours"
    except RepositoryNotFoundError:
        error = SourceError
        text = f"{where} has no such repository, or shows it only to some: HF_TOKEN says who asks"
    except RevisionNotFoundError:
        error = SourceError
        text = f"the repository has no revision {address.revision!r} (a branch, a tag or a whole commit)"
    except HFValidationError as why:
        error = SourceError
        text = str(why)
    except LocalEntryNotFoundError as why:
        if hub.offline or constants.HF_HUB_OFFLINE:
            more = "" if type(why) is LocalEntryNotFoundError else f" ({why})"
            text = f"{_not_there(hub)}{more}"
        else:
            text = f"cannot be read from {where}: {why.__cause__ or why}; the same command goes on from here"
    except failures as why:
        kind = type(why).__name__
        text = f"cannot be read from {where}: {kind}: {why}; the same command goes on from here, and hub.offline=true "
        text += "uses what was downloaded before"
    raise error(f"{address}: {' '.join(text.split())}") from None


def _not_there(hub: Hub) -> str:
    return f"is not in {_cache_folder(hub)}, or not all of it; without hub.offline=true it is downloaded"


def _room(hub: Hub, address: Address, missing: Mapping[str, int]) -> None:
    there = _cache_folder(hub)
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if sum(missing.values()) > free:
        raise StorageError(
            f"{address}: {there} has {show_bytes(free)} free, the download is {_much(missing)}; "
            "hub.cache=DIR puts it elsewhere"
        )


def _cache_folder(hub: Hub) -> Path:
    from huggingface_hub import constants

    return Path(os.path.expanduser(hub.cache or constants.HF_HUB_CACHE)).absolute()


def _root(found: tuple[str, Path]) -> Path:
    """The snapshot that a downloaded file lies in."""
    name, path = found
    return path.parents[name.count("/")]


def _entry(root: Path, address: Address, large: list[str]) -> Path:
    """What a container is given: the one file of weights when no index says which count, the folder otherwise."""
    folder = root if address.is_file else root / address.path
    if address.is_file:
        return root / address.path
    has_index = any(folder.glob("*.safetensors.index.json"))
    return root / large[0] if len(large) == 1 and not has_index else folder


def _much(files: Mapping[str, int]) -> str:
    return f"{len(files)} file{'s' * (len(files) != 1)} ({show_bytes(sum(files.values()))})"


def _silent() -> Any:
    """A progress bar that is not shown."""
    tqdm: Any = import_module("tqdm").tqdm

    def init(self: Any, *args: Any, **options: Any) -> None:
        tqdm.__init__(self, *args, **{**options, "disable": True})

    return type("Silent", (tqdm,), {"__init__": init})
