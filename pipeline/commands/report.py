"""`report`: one HTML page about runs."""

from collections.abc import Sequence

from pipeline.commands.arguments import Arguments, not_a_record, outputs_of, say_absent
from pipeline.errors import SourceError, StorageError
from pipeline.files import placed
from pipeline.records.registry import found
from pipeline.reporting.html.place import place_of, usual


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
    those = found(outputs, given.words)
    runs = those.runs
    say_absent(those)
    if not runs:
        which = " ".join(given.words)
        raise SourceError(f"{which}: no run is so in {outputs}" if which else f"{outputs}: there is no run in it")
    path = asked or usual(outputs, given.words, [run.folder for run in runs])
    nbytes = write(runs, path, absent=those.said)
    console.out(f"{'1 run' if len(runs) == 1 else f'{len(runs):,} runs'}, {show_bytes(nbytes)}")
    console.out(path)
    if given.open:
        import webbrowser

        if not webbrowser.open(path.as_uri()):
            raise StorageError(f"{path}: is written, and no browser was found to open it")
    return 0
