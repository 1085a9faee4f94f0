"""A kernel that is declared: its algorithm, derivatives, acceptance and the options of its own."""

import inspect
from typing import Any, ClassVar

from blackjax_ext.mcmc.derivatives import Wanted
from blackjax_ext.top_level import section_entries, with_parameters
from numpyro_fwd.kernels.base import BlackJAXKernel
from numpyro_fwd.kernels.options import KernelOptions, inherited
from numpyro_fwd.types import Model

SHARED = {
    "model": "\n    NumPyro model.",
    "learn_coordinates": (
        "\n    Whether to learn coordinates; if not, effects are sampled as they are written."
    ),
    "options": "\n    See :class:`BlackJAXKernel`.",
}


class NamedKernel(BlackJAXKernel):
    """Kernel of one algorithm of `blackjax_ext`, whose class says what is particular to it.

    Its options are those of the algorithm, with their checks and descriptions, those of
    `option_defaults`, and those of every kernel. None stands for the default of the first.

    Attributes
    ----------
    algorithm
        Of :func:`blackjax_ext.top_level.top_level`.
    differentiation
        Which derivatives it takes: "reverse", "forward" or "none".
    option_defaults
        Defaults that are not those of the algorithm, or of :class:`BlackJAXKernel`.
    best_accept_prob
        Acceptance probability to adapt to, a number or a method of the number of dimensions.
    """

    algorithm: ClassVar[Any]
    differentiation: ClassVar[Wanted] = "reverse"

    def __init__(self, model: Model | None = None, **options: Any):
        own = {name: each.default for name, each in parameters_of(type(self)).items()}
        own |= {name: options[name] for name in own if options.get(name) is not None}
        rest = {**self.option_defaults, **options}
        super().__init__(
            model,
            self.algorithm,
            differentiation=self.differentiation,
            **self._checked(own),
            **{name: value for name, value in rest.items() if name not in own},
        )

    def __init_subclass__(cls, **keywords: Any):
        if hasattr(cls, "algorithm") and "__init__" not in vars(cls):
            own = parameters_of(cls)
            others = {*cls.option_defaults} - {*own, *KernelOptions.__annotations__}
            names = [*sorted(others), *KernelOptions.__annotations__]
            model = inspect.signature(BlackJAXKernel).parameters["model"]
            shared = [inherited(cls, name) for name in names]
            cls.__signature__ = inspect.Signature([model, *own.values(), *shared])
            if cls.__doc__ and cls.algorithm.__doc__:  # not python -OO
                known = SHARED | section_entries(cls.algorithm.__doc__, "Parameters")
                listed = ["model", *own, *sorted(others), "options"]
                parts = with_parameters(inspect.cleandoc(cls.__doc__), listed, known)
                cls.__doc__ = "\n\n".join(part for part in parts if part)
        super().__init_subclass__(**keywords)

    def _checked(self, options: dict[str, Any]) -> dict[str, Any]:
        """Parameters of the algorithm from options of its own."""
        checked: dict[str, Any] = self.algorithm.checked(options)
        return checked


def parameters_of(kernel: type[NamedKernel]) -> dict[str, inspect.Parameter]:
    """Options of a kernel that are those of its algorithm, with the defaults of the kernel."""
    _, _, _, *options = inspect.signature(kernel.algorithm).parameters.values()
    defaults = kernel.option_defaults
    return {
        each.name: each.replace(default=defaults.get(each.name, each.default)) for each in options
    }
