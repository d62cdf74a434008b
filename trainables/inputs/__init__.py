"""Where batches come from: resident on the device, from loaders, or from one loader for all."""
