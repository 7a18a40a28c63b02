"""Small sessions that live in a shared process, for the tests of the hub."""

import os

_RAN = []


class Turn:
    """Says where it runs, and who ran in that process before."""

    def __init__(self, settings):
        self._name = settings["system"]
        if self._name == "missing":
            raise RuntimeError("no CUDA device")
        if self._name == "broken":
            raise ValueError("no such way\nand more lines")
        self.note = f"{self._name} in {os.getpid()}"

    def run(self):
        if self._name == "dying":
            os._exit(3)
        _RAN.append(self._name)
        return {"value": float(len(_RAN)), "synthetic": 10.0}

    def evidence(self):
        return {"pid": os.getpid(), "ran": list(_RAN)}

    def close(self):
        pass
