"""Primitives of JAX by what they do, from which every reader of programs takes its tables.

A primitive in none of these sets is unknown, and a reader is careful with it: its outputs depend on
all inputs, are not linear in any, and have no bounds. What one reader alone knows of a
primitive stands with its rules.
"""

# programs that are called; those of RECOMPUTED reverse mode does again, which changes no number
CALLS = frozenset(["jit", "pjit", "closed_call", "core_call"])
RECOMPUTED = frozenset(["remat", "remat2", "checkpoint"])
INLINED = CALLS | RECOMPUTED
# the same with a rule of their own for derivatives or batches
RULED = frozenset(["custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"])
RULED |= {"custom_vmap_call"}
CALLBACKS = frozenset(["pure_callback", "io_callback", "ffi_call"])

# moving numbers: those of one array, to other shapes and to other places; those of several; some,
# by indices
RESHAPING = frozenset(["broadcast_in_dim", "copy", "expand_dims", "reshape", "squeeze"])
PLACING = RESHAPING | {"rev", "slice", "transpose"}
JOINING = frozenset(["concatenate", "stack"])
INDEXING = frozenset(["dynamic_slice", "gather"])
CONVERTING = frozenset(["convert_element_type"])
STRUCTURAL = PLACING | JOINING | CONVERTING

ADDITIONS = frozenset(["add", "add_any"])

# functions of one number: smooth ones, and those that are not, of one or more
EXPONENTIAL = frozenset(["exp", "expm1", "log", "log1p", "logistic", "tanh"])
SMOOTH = EXPONENTIAL | {"digamma", "erf", "lgamma", "rsqrt", "sqrt"}
KINKS = frozenset(["abs", "ceil", "clamp", "floor", "max", "min", "round", "select_n", "sign"])
LOGICAL = frozenset(["and", "not", "or", "xor"])
COMPARISONS = LOGICAL | {"eq", "ge", "gt", "is_finite", "le", "lt", "ne"}

# outputs of many entries, with slopes of both signs
DECOMPOSITIONS = frozenset(["cholesky", "eig", "eigh", "lu", "qr", "schur", "svd"])
REFLECTIONS = frozenset(["geqrf", "hessenberg", "householder_product", "tridiagonal"])
SOLVES = frozenset(["triangular_solve", "tridiagonal_solve"])
FACTORIZATIONS = DECOMPOSITIONS | REFLECTIONS | SOLVES

RANDOM = frozenset(["rng_bit_generator", "rng_uniform"])
