"""One run: its server, its clients, the process that they share, and what is written down."""
