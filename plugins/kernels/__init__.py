from pipeline.config.extend import extended

__path__ = extended(__name__, __path__)

JAX_NBYTES = 512 << 20  # what a process that converts with XLA keeps: JAX, its threads, programs of a few shapes
