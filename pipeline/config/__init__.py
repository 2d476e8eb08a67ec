"""Config: what is typed becomes checked, frozen stages."""
