"""How numbers, rows and tables read, whoever writes them."""
