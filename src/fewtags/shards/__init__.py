"""Where the bytes of photos are: files, members of tar files, rows of Parquet files, on a disk or behind a URL."""
