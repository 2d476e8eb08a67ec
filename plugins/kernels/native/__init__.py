"""The native kernels: C++ beside the ops, compiled where they run, with the instructions that the machine has.

One core and two doors. Conversion calls it through `library`, over plain buffers and without JAX; models will call the
same functions as XLA's own. `build` makes the libraries; nothing here happens on import.
"""
