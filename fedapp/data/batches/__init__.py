"""What training and evaluation iterate over: batches that lie on the device, or stream to it."""
