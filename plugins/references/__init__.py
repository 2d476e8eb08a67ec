"""Other people's implementations of models, to compare with. Each needs a package that is no dependency of ours."""
