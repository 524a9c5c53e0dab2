"""The subcommands of `mirrorflow`: one module each, imported only when its command is used."""
