"""What a session may use. Both sides of the sandbox read these; bytes unless another unit is named."""

CODE = 256 << 10  # of one execution
OUTPUT = 16 << 10  # each of stdout and stderr that is kept; the rest is discarded where it is written
SHOWN = 4 << 10
VALUE = 256 << 10  # of an encoded value; a larger one is none
ERROR = 2 << 10

MEMORY = 512 << 20  # address space of a session
FILES = 16 << 20  # all files of a session together
INODES = 1024
OPEN_FILES = 64
THREADS = 64
CPU_SECONDS = 600  # of a session as a whole
START_SECONDS = 20.0  # until a session answers, on a busy machine
