"""Pure functions of accuracies, features and weights."""
