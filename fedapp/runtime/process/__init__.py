"""What a process keeps between messages: data, models, and the method's objective."""
