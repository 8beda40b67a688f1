"""The forms of operators that are not bound to one of ONNX, by families; importing the package fills the table."""

from tilewright.exporters.onnx.forms import contract as contract
from tilewright.exporters.onnx.forms import elementwise as elementwise
from tilewright.exporters.onnx.forms import index as index
from tilewright.exporters.onnx.forms import norm as norm
from tilewright.exporters.onnx.forms import quant as quant
from tilewright.exporters.onnx.forms import recurrent as recurrent
from tilewright.exporters.onnx.forms import reduce as reduce
from tilewright.exporters.onnx.forms import source as source
from tilewright.exporters.onnx.forms import staged as staged
from tilewright.exporters.onnx.forms import view as view
