"""`report`: one HTML page about runs."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.commands.arguments import Arguments, not_a_record, outputs_of
from pipeline.errors import SourceError, StorageError
from pipeline.files import placed
from pipeline.records.registry import find
from pipeline.records.sweeps import SWEEP
from pipeline.reporting.html.place import NAME, place_of


def main(words: Sequence[str]) -> int:
    """Write the page of the runs that `words` name, or of all. The exit code.

    Raises:
        ConfigError: an option that there is not, or a place that is none for a page.
        SourceError: there is no such run.
        StorageError: the page cannot be written.
    """
    from pipeline.reporting import console
    from pipeline.reporting.html.page import write
    from pipeline.units import show_bytes

    outputs, rest = outputs_of(words)
    arguments = Arguments("report")
    arguments.add_argument("words", nargs="*")
    arguments.add_argument("--out")
    arguments.add_argument("--open", action="store_true")
    given = arguments.read(rest)
    if given.out is not None:
        not_a_record(placed(given.out))
    asked = place_of(given.out) if given.out is not None else None
    runs = find(outputs, given.words)
    if not runs:
        which = " ".join(given.words)
        raise SourceError(f"{which}: no run is so in {outputs}" if which else f"{outputs}: there is no run in it")
    path = asked or _place(outputs, given.words, [run.folder for run in runs])
    nbytes = write(runs, path)
    console.out(f"{'1 run' if len(runs) == 1 else f'{len(runs):,} runs'}, {show_bytes(nbytes)}")
    console.out(path)
    if given.open:
        import webbrowser

        if not webbrowser.open(path.as_uri()):
            raise StorageError(f"{path}: is written, and no browser was found to open it")
    return 0


def _place(outputs: Path, words: Sequence[str], folders: Sequence[Path]) -> Path:
    """Of one run in its folder, of a sweep in the sweep's, of others beside them."""
    if len(folders) == 1:
        return folders[0] / NAME
    sweep = outputs / words[0] if len(words) == 1 else outputs
    return (sweep if (sweep / SWEEP).is_file() else outputs) / NAME
