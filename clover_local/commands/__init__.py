"""One module per subcommand of `clover`, imported only when chosen."""
