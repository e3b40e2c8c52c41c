"""The updates of other frameworks, as small functions over any type of number.

For explaining, converting and recognising; no engine runs them. Rules ``cann`` and ``torch`` stand in `formula`.
"""

from samestep.rules.inside import caffe, keras, mxnet, tf_keras
from samestep.rules.outside import ema, mindspore_cpu, mlx, onnx, tf1, trace
from samestep.rules.terms import Number, Rule, Terms

__all__ = ["RULES", "Number", "Rule", "Terms"]

_RULES = (
    Rule("mindspore-cpu", "MindSpore's SGD on the CPU", "mindspore.ops.SGD; a negative weight decay is off there",
         mindspore_cpu, "stat", "kept", "outside", "L2", dampening=True),
    Rule("onnx", "the Momentum operator of ONNX", "ai.onnx.preview.training; dampening is 1-beta",
         onnx, "zeros", "overwritten", "outside", "L2", dampening=True),
    Rule("trace", "momentum as a plain trace", "optax.sgd, paddle Momentum, tinygrad SGD",
         trace, "zeros", "overwritten", "outside", "L2"),
    Rule("tf1", "TensorFlow's ApplyMomentum", "tf.compat.v1.train.MomentumOptimizer, tf.raw_ops.ApplyMomentum",
         tf1, "zeros", "overwritten", "outside", "none"),
    Rule("keras", "Keras' SGD", "keras.optimizers.SGD of Keras 3",
         keras, "zeros", "kept", "inside", "decoupled"),
    Rule("tf-keras", "TensorFlow's Keras momentum", "tf.raw_ops.ResourceApplyKerasMomentum, tf_keras.optimizers.SGD",
         tf_keras, "zeros", "overwritten", "inside", "decoupled"),
    Rule("mxnet", "MXNet's SGD and NAG", "mxnet.optimizer.SGD, mxnet.optimizer.NAG",
         mxnet, "zeros", "kept", "inside", "L2"),
    Rule("mlx", "MLX's SGD", "mlx.optimizers.SGD",
         mlx, "zeros", "kept", "outside", "L2", dampening=True),
    Rule("caffe", "Caffe's SGD", "the SGD and Nesterov solvers",
         caffe, "zeros", "overwritten", "inside", "L2"),
    Rule("ema", "a mean of gradients as velocity", "kernels that weigh the gradient by 1-m",
         ema, "zeros", "overwritten", "outside", "none", nesterov=False),
)

RULES: dict[str, Rule] = {rule.name: rule for rule in _RULES}
