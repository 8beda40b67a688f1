"""Whether memory of the caller's was written to, by whatever means, since it was looked at last."""

from tilewright.torch.watch.memory import Span as Span
from tilewright.torch.watch.memory import Watch as Watch
from tilewright.torch.watch.memory import refresh as refresh
