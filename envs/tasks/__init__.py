"""Downstream tasks over a body: goals on the open floor and in mazes. `goals` makes them, `layout` reads mazes,
`collision` gives a body something to feel walls with."""
