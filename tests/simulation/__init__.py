"""Tests of whole simulations: a package, so that their SuperLink ends with the last of them."""
