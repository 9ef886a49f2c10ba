"""Where the files of sandboxes are kept as layers: snapshot, fork, reset, difference, export. See docs/layers.md."""
