"""The one package that talks to Kubernetes: everything that is read from it or written to it passes here."""
