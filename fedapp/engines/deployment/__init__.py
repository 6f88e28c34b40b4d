"""Real SuperNodes: certificates, checks of the installation, and the warm worker."""
