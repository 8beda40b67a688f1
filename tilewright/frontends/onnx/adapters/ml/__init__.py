"""Adapters of the domain `ai.onnx.ml`, by family."""

from tilewright.frontends.onnx.adapters.ml import features as features
from tilewright.frontends.onnx.adapters.ml import labels as labels
from tilewright.frontends.onnx.adapters.ml import linear as linear
from tilewright.frontends.onnx.adapters.ml import maps as maps
from tilewright.frontends.onnx.adapters.ml import svm as svm
from tilewright.frontends.onnx.adapters.ml import trees as trees
