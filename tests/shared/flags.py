"""Small networks on the command line."""

SMALL_FLAGS = [
    "--width",
    "16",
    "--num-query-heads",
    "2",
    "--depth",
    "1",
    "--window",
    "32",
    "--chunk-size",
    "20",
    "--num-streams",
    "2",
]
TINY_FLAGS = ["--width", "8", "--num-query-heads", "2", "--depth", "1", "--window", "8"]
