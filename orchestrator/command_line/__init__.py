"""From words on the command line to a question that can be answered."""
