"""envspec: see what differs between Python environments, on any number of hosts, before anything runs."""
