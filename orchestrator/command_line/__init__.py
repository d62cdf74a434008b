"""From words on the command line to a question that can be answered. The only place with Hydra, beside app.py."""
