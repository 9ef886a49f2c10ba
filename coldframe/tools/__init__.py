"""What an agent may ask for, one file per tool."""
