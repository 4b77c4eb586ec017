"""One process per rank of a model that several devices share.

Rank 0 is the engine process: scheduler, loop and sampling. It starts the others, its followers, which hold their share
of the weights and of the KV cache and execute every plan that rank 0 executes:

    rank 0     plan ──> Execute(plan) to each follower ──> own share ──> sample, tell the tokens ──> result
    follower   Execute(plan) ──> own share ──> be told the tokens

Plans travel over ZeroMQ, everything on the devices through `gpu.communicator`. What ends one rank ends all.
"""
