"""Secure aggregation: the server learns the sum of the nodes' updates and no single one."""
