"""What the model families truly share: parameters by name, layers, the cache, the loop over layers."""
