"""A mesh of JAX devices: which devices it takes, how arrays lie on them, and the places where they speak to each other."""
