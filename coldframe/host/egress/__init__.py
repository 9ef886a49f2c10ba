"""The only way out of a box: what it sends is caught, judged by name and carried by the host, or refused."""
