"""The files of `onnx_files`, read and imported and not compiled: many more cases in the same time. Each becomes graphs, or an error of
ours; what runs on the host runs only with `onnx_files`."""

from __future__ import annotations

from tilewright.core.errors import TilewrightError, VerifyError
from tilewright.frontend.onnx.load import Source
from tilewright.frontend.onnx.session import import_onnx
from tilewright.ir.verify import verify

from .engine.campaign import MB, Campaign
from .files.mutate import changed_bytes
from .onnx_files import Case, changed_fields, draw, models


def check(case: Case) -> None:
    data = (changed_bytes if case.how == "bytes" else changed_fields)(models()[case.name], case.changes)
    try:
        found = import_onnx(Source(data), verify)
    except VerifyError:
        raise
    except TilewrightError:
        return
    if found.graph is not None:
        verify(found.graph)


CAMPAIGN = Campaign(draw=draw, check=check, quick=25, memory=1536 * MB, growth=4 * MB,  # what malloc keeps of freed arrays comes and goes
                    keep=("name", "how"))
