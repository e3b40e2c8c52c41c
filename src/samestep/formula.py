"""The update of one element, once per rule: the only arithmetic that any engine runs.

Each function is plain Python over whatever it is given: NumPy float32 arrays in the reference engine, float32
values in the compiled kernels. To stay compilable everywhere it imports nothing, holds no float literal (a literal
would widen the arithmetic to float64) and takes flags that are constants of the kernel. Every ``*``, ``+`` and ``-``
is one rounding; an engine must not fuse them.

Letters, as in the rules: ``p`` parameters, ``g`` gradient, ``lr`` learning_rate, ``a`` accum, ``b`` momentum_buffer,
``m`` momentum, ``s`` stat, ``d`` dampening, ``wd`` weight_decay. ``one`` is 1 in the type of the arithmetic.
``fma(x, y, z)`` is x*y + z rounded once, for which Python has no operator.
"""


def cann(p, g, lr, a, m, s, d, wd, one, nesterov, weight_decay, dampening, ascend950):
    """Rule O5: return ``(p_out, accum_t)`` in the type of the arguments.

    ``nesterov``, ``weight_decay`` and ``dampening`` say which terms exist at all (a weight decay of zero is absent,
    not multiplied by zero; ``s`` is not read without dampening). ``ascend950`` chooses that evaluation order, else
    the order is ``spec``. The write-back of accum and stat (rule O6) is the caller's.
    """
    if weight_decay:
        grad = g + p * wd
    else:
        grad = g

    accum_t = a * m + grad

    if dampening:
        first = one - s
        if ascend950:
            accum_t = accum_t - grad * (first * d)
        else:
            accum_t = accum_t - (grad * first) * d

    if nesterov:
        ahead = accum_t * m
        if ascend950:
            step = (grad + ahead) * lr
        else:
            step = grad * lr + ahead * lr
    else:
        step = accum_t * lr

    return p - step, accum_t


def torch(p, g, b, neg_lr, m, one_minus_d, wd, fma, maximize, weight_decay, momentum, nesterov, first):
    """Rule T: return ``(p_out, b_out)`` in the type of the arithmetic.

    ``maximize``, ``weight_decay``, ``momentum`` and ``nesterov`` say which terms exist. On the ``first`` momentum step
    of a parameter ``b`` is not read. Without momentum ``b_out`` is ``b``, which the caller does not write.
    """
    if maximize:
        g = -g
    if weight_decay:
        g = fma(wd, p, g)

    if momentum:
        if first:
            b = g
        else:
            b = fma(one_minus_d, g, m * b)
        if nesterov:
            u = fma(m, b, g)
        else:
            u = b
    else:
        u = g

    return fma(neg_lr, u, p), b
