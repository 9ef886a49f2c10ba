"""At the edge of the box: what runs here needs the standard library alone, and is believed by nobody."""
