"""One module per place that a server's acceptance can be read from; each turns it into an :class:`~eagle3_diag.observed.Observed`."""
