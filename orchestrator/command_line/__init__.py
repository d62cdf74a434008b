"""From words on the command line to a configured sweep that can be carried out."""
