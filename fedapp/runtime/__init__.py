"""One run: its server, its clients, the context of its processes, and its callbacks."""
