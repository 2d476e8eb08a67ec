"""Whose code failed: a chunk of an export pulls on the views of all stages before it, and any of them may raise."""

from traceback import walk_tb


def blamed(label: str, why: BaseException) -> str:
    """`label`, that of a task, as an error of that task should begin: with the function that the task only pulled on,
    where it was one."""
    frames = [frame for frame, _ in walk_tb(why.__traceback__)]
    modules = [str(frame.f_globals.get("__name__", "")) for frame in frames]
    ours = [module.startswith("pipeline.") for module in modules]
    if all(ours):
        return label
    first = ours.index(False)
    last = max((i for i, mine in enumerate(ours) if mine), default=-1) + 1
    if last >= len(frames) or last <= first or modules[last] == modules[first]:
        return label
    return f"{modules[last]}.{frames[last].f_code.co_qualname} (for {label})"
