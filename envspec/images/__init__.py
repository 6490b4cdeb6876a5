"""Images: built from a lock, looked into, proved identical."""
