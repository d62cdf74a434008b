"""How one trial trains: the trainables and what they are made of. PyTorch; nothing of where or when a trial runs."""
