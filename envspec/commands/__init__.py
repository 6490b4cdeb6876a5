"""One module a command: each reads, lets decide, and shows; ``run`` returns the exit code."""
