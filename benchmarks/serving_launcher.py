"""Starts a service again and again without waiting for imports: a line with its arguments in, its process number out.

Everything is imported once; each service is a fork of this process in a session of its own.
"""

from __future__ import annotations

import json
import os
import signal
import sys


def main() -> None:
    import prequential.cli.app
    import prequential.serve.server
    import prequential.serve.worker
    from prequential.serve.nursery import warm_up

    warm_up()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        arguments, log = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.dup2(handle, 2)
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            os.dup2(2, 1)
            try:
                prequential.cli.app.main(arguments)
            except SystemExit as ended:
                os._exit(int(ended.code or 0))
            os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
