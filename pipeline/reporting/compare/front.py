"""Pareto's front: one point dominates another where it is at least as good in every coordinate, and better in one. What
is equal in all of them is dominated by neither.
"""

from collections.abc import Sequence


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether it is no larger anywhere, and smaller somewhere."""
    return all(a <= b for a, b in zip(one, other, strict=True)) and any(a < b for a, b in zip(one, other, strict=True))


def dominators(points: Sequence[Sequence[float]]) -> list[list[int]]:
    """Of each point those that dominate it, as far as none dominates them; of one on the front none.

    Args:
        points: of each its coordinates, better when smaller.
    """
    front: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: tuple(points[i])):  # what dominates a point comes before it
        if not any(dominates(points[j], points[i]) for j in front):
            front.append(i)
    return [[j for j in sorted(front) if dominates(points[j], one)] for one in points]
