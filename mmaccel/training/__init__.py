"""Training draft heads: conversations, what the target feels about them, the loop, checkpoints."""
