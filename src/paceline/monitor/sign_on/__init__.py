"""Users of an OpenID provider, and the rights of their groups."""
