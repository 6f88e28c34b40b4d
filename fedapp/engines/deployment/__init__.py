"""Real SuperNodes: certificates, a check of the installation, and a worker that stays."""
