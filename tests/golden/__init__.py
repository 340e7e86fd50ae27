"""Golden repositories: one of each kind for every released format, made once and read for ever."""
