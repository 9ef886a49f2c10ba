"""Systems that boxes can begin with, built once and never changed: whole root file systems of their own."""
