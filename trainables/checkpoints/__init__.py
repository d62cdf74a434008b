"""What a training keeps to go on from, and how often."""
