"""Users of an OpenID provider: who they are, and what their groups may."""
