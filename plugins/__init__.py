from pipeline.extend import extended

__path__ = extended(__name__, __path__)
