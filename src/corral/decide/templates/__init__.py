"""CloudFormation templates: reading, checking, and evaluating them.

A template goes through these steps:

    tree = read_template(text)                                     # YAML or JSON
    values = parameter_values(parameter_declarations(tree), ...)   # the values of an operation
    tree = expand(tree, {**pseudo, **values.values})               # Transform: AWS::LanguageExtensions
    template = compile_template(tree)                              # checks everything that needs no values
    evaluation = Evaluation(template, values.values, pseudo, ...)  # conditions, order of the resources
    evaluation.resolve(template.resources["Bucket"].properties, ref, get_att)

Each step can raise a `TemplateError` with CloudFormation's words.
"""

from __future__ import annotations

from corral.decide.templates.compilation import compile_template
from corral.decide.templates.evaluation import Evaluation
from corral.decide.templates.expansion import expand
from corral.decide.templates.parameters import USE_PREVIOUS, ParameterValues, parameter_declarations, parameter_values
from corral.decide.templates.reading import TEMPLATE_MAX_BYTES, read_template
from corral.decide.templates.template import (
    OutputDeclaration,
    ParameterDeclaration,
    ResolvedOutput,
    ResourceDeclaration,
    Template,
    TemplateError,
)

__all__ = [
    "TEMPLATE_MAX_BYTES",
    "USE_PREVIOUS",
    "Evaluation",
    "OutputDeclaration",
    "ParameterDeclaration",
    "ParameterValues",
    "ResolvedOutput",
    "ResourceDeclaration",
    "Template",
    "TemplateError",
    "compile_template",
    "expand",
    "parameter_declarations",
    "parameter_values",
    "read_template",
]
