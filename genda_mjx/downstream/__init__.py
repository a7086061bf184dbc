"""Tasks solved by choosing skills: a controller over a frozen policy, and the program that trains it."""
