"""The words that the houses exchange: specs, results, states, errors and the three protocols."""
