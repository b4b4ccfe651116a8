"""What may the model call, in which form, and what does it get back?"""

from posttrain.tools.registry import BUILTIN, execute, tools_for
from posttrain.tools.spec import ToolSpec, json_schema
from posttrain.tools.xml import parse_call

__all__ = ["BUILTIN", "ToolSpec", "execute", "json_schema", "parse_call", "tools_for"]
