"""`torch.compile(module, backend="tilewright")`: PyTorch finds the backend by the package's entry point.

    compiled = torch.compile(module, backend="tilewright", options={"threads": 2})
    print(tilewright.torch.explain(module, x))

Importing this module imports torch.
"""

from tilewright.torch.adapters import adapter as adapter
from tilewright.torch.backend import backend as backend
from tilewright.torch.explain import Explanation as Explanation
from tilewright.torch.explain import explain as explain
