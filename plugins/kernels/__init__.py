from pipeline.config.extend import extended

__path__ = extended(__name__, __path__)
