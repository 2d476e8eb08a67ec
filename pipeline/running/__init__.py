"""Running: a plan as tasks, in a graph, resumed where it stopped."""
