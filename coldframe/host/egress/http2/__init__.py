"""HTTP/2 where requests are read: with a program of the box, and with the server that it asks."""
