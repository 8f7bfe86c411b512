"""make scale: the same work by engines for many machines, with real servers on loopback."""
