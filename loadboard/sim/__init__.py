"""A simulated inference engine: the model in virtual time, and the same model over HTTP."""
