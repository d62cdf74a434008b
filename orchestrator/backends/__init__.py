"""Where trials run: what every back end offers, how attempts are conducted, and the one without Ray."""
