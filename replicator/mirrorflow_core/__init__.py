"""Pure code that every part may import: no sockets, clock, files, threads or logging."""
